"""The table of memory: it outlives a try, and a try that lost its row can neither read nor write it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbound_transfer.airflow_compat.task_try import StaleTry, TaskTry
from outbound_transfer.warehouse.config import MemoryPlace
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.errors import (
    DeliveryKeyInUse,
    MemoryUnavailable,
    SchemaTooNew,
    UnreliableTable,
)
from outbound_transfer.warehouse.memory_table import MemoryKey, MemoryRow, MemoryTable
from outbound_transfer.warehouse.schema import MEMORY_GROUP, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now
from support.warehouses import Hook

T0, T1, T2 = (f"2026-11-0{day}T00:00:00.000000+00:00" for day in (1, 2, 3))

ACCOUNT = "https://example.com"


class Rows:
    """Opens rows of a table: ``rows.of_task(2)``, ``rows.of_key("run")``."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def of_task(self, number: int = 1, *, run: str = T0, fresh: bool = True, **other: Any) -> MemoryRow:
        values = {"dag_id": "d" * 250, "run_id": "r/ü %s", "task_id": "t", "map_index": -1} | other
        task_try = TaskTry(**values, try_number=number, run_started_at=run, is_fresh=fresh)
        return MemoryTable(Warehouse(self.hook)).of_task(task_try)

    def of_key(
        self, run_id: str = "r", number: int = 1, *, key: str = "k", account: str = ACCOUNT, run: str = T0, **other: Any
    ) -> MemoryRow:
        task_try = TaskTry("d", run_id, "t", -1, number, run, is_fresh=number == 1)
        return MemoryTable(Warehouse(self.hook)).of_delivery_key(account, key, task_try, **other)

    def stored(self, columns: str) -> list[tuple[Any, ...]]:
        return self.hook.fetch(f"SELECT {columns} FROM outbound_transfer_memory ORDER BY run_id")


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "psycopg2", "mysqlclient", "invented_postgresql"])
def rows(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Rows:
    if request.param == "invented_postgresql":
        return Rows(Hook("invented_postgresql", hook_of("psycopg").get_conn))
    return Rows(hook_of(request.param))


@pytest.fixture
def sqlite_rows(hook_of: Callable[[str], Hook]) -> Rows:
    return Rows(hook_of("sqlite"))


def is_dead(owner: TaskTry) -> bool:
    return False


def is_alive(owner: TaskTry) -> bool:
    return True


def uses(row: MemoryRow) -> Iterator[Callable[[], object]]:
    """Yield each use of a row that only its owner has."""
    yield lambda: row.get("a")
    yield lambda: row.set("a", 9)
    yield lambda: row.record_sent("x")
    yield row.check_still_owner


# A task's own row.


def test_what_was_stored_last_is_read_by_this_try_and_later_ones(rows: Rows) -> None:
    first = rows.of_task(1)
    assert first.get("a") is None
    assert first.get("a", default=3) == 3
    first.set("a", {"name": "caf\udce9 \0 ü", "size": 2**60})
    first.set("b", [1])
    first.set("b", [2])
    assert first.get("a") == {"name": "caf\udce9 \0 ü", "size": 2**60}
    second = rows.of_task(2, fresh=False)
    assert (second.get("b"), second.get("a")["size"]) == ([2], 2**60)
    second.set("b", [3])
    assert rows.of_task(5, fresh=False).get("b") == [3]


def test_a_later_try_supersedes_from_its_beginning_on(rows: Rows) -> None:
    """What the earlier one does then, it can neither store nor learn."""
    stale, later = rows.of_task(1), rows.of_task(2, fresh=False)
    stale.claim()
    stale.set("a", {"draft_id": "t1"})
    later.claim()
    for use in uses(stale):
        with pytest.raises(StaleTry, match="Try 2 of this task has begun: try 1 does nothing more"):
            use()
    later.set("b", 2)
    assert (later.get("a"), later.get("b")) == ({"draft_id": "t1"}, 2)
    later.check_still_owner()


def test_an_earlier_try_begins_nothing(rows: Rows) -> None:
    """Its process was slow, or its task instance was deleted, so that its tries count from 1 again."""
    rows.of_task(1).set("a", 1)
    rows.of_task(4, fresh=False).set("a", 4)
    for number in (1, 3):
        row = rows.of_task(number, fresh=False)
        for begin in (row.claim, lambda row=row: row.get("a"), lambda row=row: row.set("a", 9)):
            with pytest.raises(StaleTry, match=f"Try 4 of this task has begun: try {number} does nothing more"):
                begin()
    assert rows.of_task(4, fresh=False).get("a") == 4


def test_a_deferred_try_reads_what_it_stored(rows: Rows) -> None:
    first, resumed, retry = rows.of_task(1), rows.of_task(1, fresh=False), rows.of_task(2, fresh=False)
    first.claim()
    first.set("a", 1)
    resumed.claim()
    assert resumed.get("a") == 1
    for use in uses(first):
        with pytest.raises(StaleTry, match="Another process of this try has begun"):
            use()
    retry.claim()
    assert [(row.is_resumed, row.is_taken_over) for row in (first, resumed, retry)] == [
        (False, False),
        (True, True),
        (False, True),
    ]


def test_another_object_of_the_same_try_shares_its_claim(rows: Rows) -> None:
    """As that of the deadline of a wait, in the process that has sent."""
    own, other = rows.of_task(2, fresh=False), rows.of_task(2, fresh=False)
    own.claim()
    own.set("a", 1)
    assert other.get("a") == 1
    other.set("b", 2)
    own.set("a", 3)
    assert (own.get("b"), other.get("a")) == (2, 3)
    rows.of_task(3, fresh=False).claim()
    for use in (*uses(own), *uses(other)):
        with pytest.raises(StaleTry, match="Try 3"):
            use()


def test_task_instances_do_not_see_one_another(rows: Rows) -> None:
    rows.of_task(1).set("a", 1)
    others = [{"dag_id": "D" * 250}, {"run_id": "R/ü %s"}, {"run_id": "r/ü %s "}, {"run_id": "r/u %s"}]
    for other in (*others, {"task_id": "T"}, {"map_index": 0}, {"map_index": 1}):
        row = rows.of_task(1, **other)
        row.claim()
        assert (row.get("a"), row.is_taken_over) == (None, False)


def test_a_clear_remembers_whether_or_not_the_run_starts_anew(rows: Rows) -> None:
    rows.of_task(1).set("a", 1)
    assert rows.of_task(2, fresh=False).get("a") == 1
    cleared = rows.of_task(2, run=T1, fresh=False)
    assert cleared.get("a") == 1
    cleared.set("b", 2)
    again = rows.of_task(3, run=T1, fresh=False)
    assert (again.get("a"), again.get("b")) == (1, 2)


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_a_run_that_is_made_anew_under_its_id_remembers_nothing(rows: Rows, tries: int) -> None:
    for number in range(1, tries + 1):
        old = rows.of_task(number, fresh=number == 1)
        old.set("a", {"draft_id": "t1"})
        old.record_sent("t1")
    anew = rows.of_task(1, run=T1)
    assert anew.get("a") is None
    anew.claim()
    assert (anew.is_resumed, anew.is_taken_over, anew.get("a")) == (False, False, None)
    assert rows.stored("transfer_id, sent_at") == [(None, None)]
    anew.set("b", 1)
    retry = rows.of_task(2, run=T1, fresh=False)
    assert (retry.get("a"), retry.get("b")) == (None, 1)
    for use in uses(old):
        with pytest.raises(StaleTry, match="This task's run was started again since"):
            use()


def test_a_task_instance_that_is_made_anew_in_a_run_that_starts_anew_remembers(rows: Rows) -> None:
    """It was deleted, and the finished run was cleared: its first try is later than any of before."""
    rows.of_task(3).set("a", 3)
    anew = rows.of_task(1, run=T1, fresh=False)
    anew.claim()
    assert (anew.get("a"), anew.is_taken_over, anew.is_resumed) == (3, True, False)
    with pytest.raises(StaleTry, match="This task's run was started again since"):
        rows.of_task(4, fresh=False).claim()


def test_a_sent_transfer_of_a_task_is_superseded_by_its_next_try(rows: Rows) -> None:
    """Only a key is finished with its send: a task may be asked to send again."""
    first, cleared = rows.of_task(1), rows.of_task(2, fresh=False)
    first.set("a", {"draft_id": "t1"})
    first.record_sent("t1")
    cleared.claim()
    assert not cleared.is_sent
    cleared.set("a", {"draft_id": "t2"})
    cleared.record_sent("t2")
    assert rows.stored("transfer_id, claim_number, account, delivery_key") == [("t2", 2, None, None)]


def test_a_task_instance_that_is_made_anew_in_a_cleared_run_remembers() -> None:
    """It was deleted, so it is a first try again; a run that was made anew was never cleared."""
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(start_date=utc_now(), clear_number=1)}
    assert not TaskTry.of(context).is_fresh
    context["dag_run"].clear_number = 0
    assert TaskTry.of(context).is_fresh


# The row of a delivery key.


def test_the_owner_writes_and_whoever_lost_the_key_does_not(rows: Rows) -> None:
    first, second = rows.of_key("one", first_values={"n": 0}), rows.of_key("two")
    first.claim(is_alive)
    assert (first.get("n"), second.get("n")) == (0, 0)
    first.set("a", {"transfer_id": "t1", "name": "caf\udce9 \0"})
    with pytest.raises(DeliveryKeyInUse, match=r"Task d\.t of run one delivers under delivery key 'k'"):
        second.claim(is_alive)
    with pytest.raises(StaleTry):
        second.set("a", 1)
    second.claim(is_dead)
    assert second.get("a") == {"transfer_id": "t1", "name": "caf\udce9 \0"}
    for use in uses(first):
        with pytest.raises(StaleTry, match=r"Another task has claimed delivery key 'k' \(d\.t of run two, try 1\)"):
            use()
    second.set("b", 2)
    third = rows.of_key("three")
    assert (third.get("a"), third.get("b")) == ({"transfer_id": "t1", "name": "caf\udce9 \0"}, 2)


def test_what_was_sent_is_read_and_never_claimed(rows: Rows) -> None:
    first, second = rows.of_key("one"), rows.of_key("two")
    first.claim(is_alive)
    first.set("a", 1)
    first.record_sent("t1")
    second.claim(is_alive)
    assert (second.is_sent, second.get("a")) == (True, 1)
    with pytest.raises(StaleTry):
        second.set("a", 2)
    first.check_still_owner()


def test_a_claim_that_meets_a_send_reads_it(rows: Rows) -> None:
    """It is recorded between the look at the row and its claim."""
    owner, other = rows.of_key("owner"), rows.of_key("other")
    owner.claim(is_alive)

    def send(_: TaskTry) -> bool:
        owner.record_sent("t1")
        return False

    other.claim(send)
    assert other.is_sent
    owner.check_still_owner()


def test_the_keys_under_which_a_transfer_was_made(rows: Rows) -> None:
    first, other = rows.of_key("one"), rows.of_key("three", key="K")
    for row, transfer_id in ((first, "t1"), (other, "T1")):
        row.claim(is_dead)
        row.set("a", {"draft_id": transfer_id})
    elsewhere = rows.of_key("four", key="K", account="https://EXAMPLE.com")
    elsewhere.claim(is_dead)
    elsewhere.set("a", {"draft_id": "t1"})
    rows.of_task(1).set("a", {"draft_id": "t1"})

    def count(row: MemoryRow, transfer_id: str) -> int:
        return len(row.of_other_keys(transfer_id))

    assert [count(first, "t1"), count(other, "t1"), count(first, "T1"), count(first, "t2")] == [0, 1, 1, 0]
    assert [row.get("a") for row in other.of_other_keys("t1")] == [{"draft_id": "t1"}]


def test_only_the_newest_try_of_a_task_claims_and_only_the_same_is_resumed(rows: Rows) -> None:
    rows.of_key(number=2).claim(is_alive)
    with pytest.raises(StaleTry, match="Try 2 of this task has begun"):
        rows.of_key(number=1).claim(is_alive)
    same, next_one, made_anew = rows.of_key(number=2), rows.of_key(number=3), rows.of_key(number=1, run=T1)
    for row in (same, next_one, made_anew):
        row.claim(is_alive)
    assert [row.is_resumed for row in (same, next_one, made_anew)] == [True, False, False]
    with pytest.raises(StaleTry, match="This task's run was started again since"):
        rows.of_key(number=4).claim(is_alive)


def test_of_those_that_saw_the_same_owner_one_takes_over(rows: Rows) -> None:
    rows.of_key("dead").claim(is_dead)
    winner, loser = rows.of_key("winner"), rows.of_key("loser")

    def is_overtaken(owner: TaskTry) -> bool:
        if owner.run_id == "dead":
            winner.claim(is_dead)
        return owner.run_id == "winner"

    with pytest.raises(DeliveryKeyInUse, match="run winner"):
        loser.claim(is_overtaken)
    winner.check_still_owner()


@pytest.mark.parametrize("key", ["k ", "K", "ḱ", "k" * 100_000])  # characters that look alike
def test_keys_that_a_database_may_take_for_one_are_several(rows: Rows, key: str) -> None:
    rows.of_key(key="k").claim(is_alive)
    other = rows.of_key("other", key=key)
    other.claim(is_alive)
    assert not other.is_taken_over
    rows.of_key(key="k").check_still_owner  # noqa: B018


# What identifies a delivery.


def test_each_identity_has_a_digest_of_its_own() -> None:
    tasks = [("d", "r", "t", -1), ("d", "r", "t", 1), ("d", "rt", "", -1), ("dr", "", "t", -1), ('d", "r', "", "t", -1)]
    keys = [MemoryKey.of_task(TaskTry(*task, 1, T0, is_fresh=True)) for task in tasks]
    keys += [MemoryKey.of_delivery_key(*pair) for pair in (("a", "b"), ("ab", ""), ("", "ab"), ("a", "b\udce9"))]
    assert len({key.digest for key in keys}) == len(keys)
    assert all(len(key.digest) == 64 and key.digest.isascii() for key in keys)
    later = TaskTry(*tasks[0], 7, T1, is_fresh=False)
    assert MemoryKey.of_task(later) == keys[0]


# What was lost, and databases that cannot be relied on.


def test_memory_that_is_gone_is_an_error_for_its_owner(rows: Rows) -> None:
    for row, name in ((rows.of_task(1), "this task's memory"), (rows.of_key(), "delivery key 'k'")):
        row.claim(is_alive)
        rows.hook.run("DELETE FROM outbound_transfer_memory")
        for use in uses(row):
            with pytest.raises(StaleTry, match=f"The row of {name} is gone"):
                use()


def test_a_row_that_is_deleted_and_made_again_is_not_its_former_owners(rows: Rows) -> None:
    first = rows.of_key("one")
    first.claim(is_alive)
    rows.hook.run("DELETE FROM outbound_transfer_memory")
    rows.of_key("two").claim(is_alive)
    for use in uses(first):
        with pytest.raises(StaleTry, match="Another task has claimed"):
            use()


def test_a_replica_that_is_behind_is_not_believed(sqlite_rows: Rows, tmp_path: Path) -> None:
    """A proxy leads what only reads to a replica, which has not got what this try has written."""
    sqlite_rows.of_task(1).set("a", "begun")
    replica = sqlite3.connect(tmp_path / "replica.db")
    with closing(sqlite_rows.hook.get_conn()) as source:
        source.backup(replica)
    warehouse = Warehouse(sqlite_rows.hook)
    second = MemoryTable(warehouse, "connection 'x'").of_task(
        TaskTry("d" * 250, "r/ü %s", "t", -1, 2, T0, is_fresh=False)
    )
    second.claim()
    warehouse.read = lambda: closing(replica.cursor())  # type: ignore[method-assign]
    for use in (lambda: second.get("a"), second.check_still_owner):
        with pytest.raises(UnreliableTable, match="connection 'x' must lead to the primary"):
            use()
    replica.close()


def test_a_table_that_was_restored_is_not_believed(rows: Rows) -> None:
    row = rows.of_key()
    row.claim(is_dead)
    row.claim(is_dead)
    rows.hook.run("UPDATE outbound_transfer_memory SET claim_number = 1")
    with pytest.raises(UnreliableTable, match="not to a replica"):
        row.set("a", 1)


def test_a_table_without_its_primary_key_is_refused(sqlite_rows: Rows) -> None:
    hook = sqlite_rows.hook
    ensure_schema(Warehouse(hook), MEMORY_GROUP, utc_now())
    hook.run("CREATE TABLE other AS SELECT * FROM outbound_transfer_memory")
    hook.run("DROP TABLE outbound_transfer_memory")
    hook.run("ALTER TABLE other RENAME TO outbound_transfer_memory")
    columns = "'x', 'x', 'x', 'd', 'r', 't', -1, 1, '', 1, NULL, NULL, '{}', '', ''"
    for _ in range(2):
        hook.run(f"INSERT INTO outbound_transfer_memory SELECT {columns}")
    hook.run(f"UPDATE outbound_transfer_memory SET memory_key = '{MemoryKey.of_delivery_key(ACCOUNT, 'k').digest}'")
    with pytest.raises(UnreliableTable, match="2 rows of delivery key 'k': it needs its primary key"):
        sqlite_rows.of_key().claim(is_dead)


def connect_to_nothing() -> Any:
    raise AssertionError("nothing is asked of it")


class DatabaseDown(Exception):
    """As a driver raises it."""


@contextmanager
def database_down(row: MemoryRow) -> Iterator[None]:
    warehouse = row._table.warehouse
    connect = warehouse.connect

    def refuse() -> Any:
        raise DatabaseDown("could not connect\nDETAIL: ann@example.com")

    warehouse.connect = refuse
    try:
        yield
    finally:
        warehouse.connect = connect


@pytest.mark.parametrize("of_key", [False, True])
def test_a_database_that_is_down_is_named_with_what_was_done(sqlite_rows: Rows, of_key: bool) -> None:
    row = sqlite_rows.of_key() if of_key else sqlite_rows.of_task()
    row._table.name = "connection 'x'"
    name = "delivery key 'k'" if of_key else "this task's memory"
    cause = "connection 'x' fails with DatabaseDown: could not connect. A retry continues once"
    with database_down(row), pytest.raises(MemoryUnavailable) as failed:
        row.claim()
    assert str(failed.value).startswith(f"Nothing was sent, as {name} cannot be claimed: {cause}")
    row.claim()
    with database_down(row):
        for use in uses(row):
            with pytest.raises(MemoryUnavailable) as failed:
                use()
            assert cause in str(failed.value)
            assert "Nothing was sent" not in str(failed.value)
            assert "ann@" not in str(failed.value)


def test_a_file_without_room_is_named(tmp_path: Path) -> None:
    file = tmp_path / "outbound_transfer.db"
    row = MemoryPlace(file=file).open().of_task(TaskTry("d", "r", "t", -1, 1, T0, is_fresh=True))
    row.set("a", 1)
    warehouse = row._table.warehouse
    connect = warehouse.connect

    def connect_to_a_full_disk() -> Any:
        connection = connect()
        connection.execute("PRAGMA max_page_count = 1")  # the least that it can be: the pages that the file has
        return connection

    warehouse.connect = connect_to_a_full_disk
    with pytest.raises(MemoryUnavailable, match="OperationalError: database or disk is full") as failed:
        row.set("b", "x" * 1_000_000)
    assert f"the file '{file}'" in str(failed.value)
    assert row.get("a") == 1


# Cleaning.


def test_memory_of_tasks_is_cleaned_and_that_of_keys_is_not(rows: Rows) -> None:
    warehouse = Warehouse(rows.hook)
    assert MemoryTable(warehouse).clean(utc_now()) == 0  # there is no table
    before = utc_now() - timedelta(seconds=1)
    rows.of_task(1).set("a", 1)
    key = rows.of_key()
    key.claim(is_alive)
    key.record_sent("t1")
    assert MemoryTable(warehouse).clean(before) == 0
    assert MemoryTable(warehouse).clean(utc_now() + timedelta(days=1)) == 1
    assert rows.stored("delivery_key") == [("k",)]


def test_the_memory_of_a_newer_version_is_not_said_to_be_cleaned(sqlite_rows: Rows) -> None:
    ensure_schema(Warehouse(sqlite_rows.hook), MEMORY_GROUP, utc_now())
    sqlite_rows.hook.run("UPDATE outbound_transfer_schema_version SET version = 99")
    with pytest.raises(SchemaTooNew):
        MemoryTable(Warehouse(sqlite_rows.hook)).clean(utc_now())
