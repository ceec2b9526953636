"""The table of deliveries in each database: who may write a row, and what a lost answer or a restart changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from integration.store.conftest import MYSQL
from outbound_transfer.delivery.attempt import StaleTry, TaskTry
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.row import Entry, Memory, Row
from outbound_transfer.files.attached import Held
from outbound_transfer.store import shown_deliveries
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.errors import DeliveriesUnavailable, UnusableDatabase
from outbound_transfer.store.rows import Kept, Shown, Stored
from support.warehouses import DRIVERS, Hook

ROW = Stored(False, "account", "tr_1", "sending", "twin", "2026-11-28", "{}")

NOW = datetime(2026, 11, 28, tzinfo=UTC)

TASK = ("dag", "run", "task", -1)


@pytest.fixture(params=["sqlite", *DRIVERS, *MYSQL])
def hook(request: pytest.FixtureRequest, store_hook_of: Callable[[str], Hook]) -> Hook:
    return store_hook_of(request.param)


@pytest.fixture
def deliveries(hook: Hook) -> Deliveries:
    return Deliveries(hook, prefix="t_", patience=20.0)


def attempt(number: int, started: str = "1") -> TaskTry:
    return TaskTry(*TASK, number, started)


def test_a_row_is_written_only_as_it_was_read(deliveries: Deliveries) -> None:
    assert deliveries.read("k") == (0, "")
    assert deliveries.put("k", 0, ROW)
    assert not deliveries.put("k", 0, ROW), "another has inserted it"
    assert deliveries.put("k", 1, ROW), "equal values are a write, too"
    assert not deliveries.put("k", 1, ROW._replace(memory="[]"))
    assert not deliveries.put("other", 1, ROW)
    assert deliveries.read("k") == (2, "{}")


def test_rows_are_found_by_their_transfer_and_their_twin(deliveries: Deliveries) -> None:
    deliveries.put("a", 0, ROW)
    deliveries.put("b", 0, ROW._replace(transfer_id="tr_2"))
    deliveries.put("c", 0, ROW._replace(transfer_id="tr_3", phase="handed_on"))
    deliveries.put("d", 0, ROW._replace(transfer_id="TR_1", account="Account", twin="Twin"))
    assert deliveries.find("tr_1") == [("a", "account", False)]
    assert deliveries.find("TR_1 ") == []
    assert deliveries.find_twin(["a"], "twin", "") == "tr_2"
    assert deliveries.find_twin(["a"], "twin", "2026-11-29") == ""
    assert deliveries.find_twin(["d"], "Twin", "") == ""


def test_a_copy_is_kept_in_the_write_that_empties_a_row(deliveries: Deliveries) -> None:
    deliveries.put("a", 0, ROW)
    empty, kept = ROW._replace(transfer_id="", phase="empty"), Kept("copy", ROW._replace(phase="empty"), "why")
    assert not deliveries.put("a", 2, empty, kept)
    assert deliveries.read("copy") == (0, ""), "the row was not written"
    assert deliveries.put("a", 1, empty, kept)
    assert deliveries.find("tr_1") == [("copy", "account", False)]
    assert deliveries.put("a", 2, ROW)
    assert deliveries.put("a", 3, empty, kept), "again, after somebody has restored an older row"
    with deliveries.database.begin() as tx:
        errors = sa.select(deliveries.table.c.error).order_by(deliveries.table.c.delivery)
        assert tx.scalars(errors).all() == ["", "why"]


def test_of_processes_that_race_for_a_row_none_loses_a_write(hook: Hook, deliveries: Deliveries) -> None:
    deliveries.read("")  # makes the table
    claims: list[int] = []
    number = 10

    def claim_often(by: TaskTry) -> None:
        row = Row.of_task(Deliveries(hook, prefix="t_"), TASK)
        for _ in range(number):
            row.claim(by)
            claims.append(row.claim_number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(claim_often, [attempt(1)] * 2))
    assert sorted(claims) == list(range(1, 2 * number + 1))


def test_an_older_process_that_wakes_writes_nothing(deliveries: Deliveries) -> None:
    older, newer = Row.of_task(deliveries, TASK), Row.of_task(deliveries, TASK)
    older.claim(attempt(1), is_own=True)
    newer.claim(attempt(2), is_own=True)
    newer.save(phase=Phase.DRAFT, transfer_id="tr_1")
    for write in (lambda: older.save(phase=Phase.SENDING), lambda: older.claim(attempt(1)), older.save):
        with pytest.raises(StaleTry):
            write()
    assert newer.read()[1].phase is Phase.DRAFT
    again = Row.of_task(deliveries, TASK)
    assert again.claim(attempt(1, "2"), is_own=True).phase is Phase.EMPTY, "a run that is made again begins anew"
    assert len(deliveries.find("tr_1")) == 1, "and the old row is kept"
    with pytest.raises(StaleTry):
        newer.claim(attempt(2), is_own=True)


@contextmanager
def failing(deliveries: Deliveries, times: int, *, after: bool) -> Iterator[None]:
    """Let transactions fail, before they begin or once they are committed."""
    begin, left = deliveries.database.begin, [OperationalError("", {}, Exception("the server has gone away"))] * times

    @contextmanager
    def fail() -> Iterator[sa.Connection]:
        if not after and left:
            raise left.pop()
        with begin() as tx:
            yield tx
        if after and left:
            raise left.pop()

    with mock.patch.object(deliveries.database, "begin", fail):
        yield


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before", "answer lost"])
def test_a_database_that_restarts_costs_no_write(deliveries: Deliveries, times: int, *, after: bool) -> None:
    row = Row.of_task(deliveries, TASK)
    deliveries.read("")
    with failing(deliveries, times, after=after):
        row.claim(attempt(1))
    with failing(deliveries, times, after=after):
        row.save(transfer_id="tr_1", phase=Phase.DRAFT)
    memory = row.read()[1]
    assert (memory.transfer_id, memory.phase, memory.claim) == ("tr_1", Phase.DRAFT, row.claim_number)


def test_a_database_that_stays_down_is_named_without_its_rows(hook: Hook) -> None:
    deliveries = Deliveries(hook, prefix="t_", name="connection 'states'", patience=0.5)
    deliveries.read("")
    with (
        failing(deliveries, 1_000, after=False),
        pytest.raises(DeliveriesUnavailable, match="connection 'states' fails"),
    ):
        deliveries.read("k")


def test_a_row_of_ten_thousand_files_is_kept(deliveries: Deliveries) -> None:
    held = {number: Held(f"fl_{number:024}", number, "x" * 43, "f" * 16) for number in range(10_000)}
    files = {f"report_{number:05}.csv": each for number, each in held.items()}
    row = Row.of_task(deliveries, TASK)
    row.claim(attempt(1))
    row.save(entries={"": Entry(1, False, dict(files))})
    assert row.read()[1].held == files
    thousand = Memory(entries={"": Entry(1, False, dict(list(files.items())[:1_000]))})
    text = deliveries.read(row.key)[1]
    names = sum(len(name) for name in files)
    assert (len(text) - names) / len(files) <= 130
    assert row.put(row.read()[0], thousand)
    assert len(deliveries.read(row.key)[1]) <= 160_000


def test_old_rows_of_tasks_go_and_those_of_keys_and_drafts_stay(deliveries: Deliveries) -> None:
    for key, changes in {
        "sent": {},
        "draft": {"phase": "draft"},
        "discarding": {"phase": "discarding"},
        "keyed": {"is_keyed": True},
    }.items():
        deliveries.put(key, 0, ROW._replace(**changes))
    assert shown_deliveries.clean(deliveries, datetime.now(UTC) - timedelta(hours=1)) == 0
    assert shown_deliveries.clean(deliveries, datetime.now(UTC) + timedelta(hours=1)) == 1
    stays = [bool(deliveries.read(key)[0]) for key in ("sent", "draft", "discarding", "keyed")]
    assert stays == [False, True, True, True]


def test_a_table_of_this_name_with_other_columns_is_refused_in_words(hook: Hook) -> None:
    hook.run("CREATE TABLE t_deliveries (delivery varchar(64), version integer)")
    with pytest.raises(UnusableDatabase, match=r"The existing table t_deliveries is not as this package creates it"):
        Deliveries(hook, prefix="t_").read("k")


def test_the_shown_status_of_a_transfer_never_goes_back_and_pickups_stay(deliveries: Deliveries) -> None:
    def shown(status: str, picked_up_at: str | None = None, email: str = "ann@example.com") -> Shown:
        people = [{"email": email, "name": "Ann", "picked_up_at": picked_up_at}]
        return Shown(status, "Report", 1, int(bool(picked_up_at)), NOW, None, people)

    def found() -> tuple[str, str, str]:
        with deliveries.database.begin() as tx:
            row = tx.execute(sa.select(deliveries.table)).one()
        return row.status, row.error, json.loads(row.recipients)[0]["picked_up_at"]

    deliveries.put("k", 0, ROW)
    shown_deliveries.show(deliveries, "account", "conn", {"tr_1": shown("partial", "2026-11-28T00:00:00Z")})
    shown_deliveries.show_error(deliveries, "k", "it failed")
    shown_deliveries.show(deliveries, "account", "conn", {"tr_1": shown("pending")})
    assert found() == ("partial", "it failed", "2026-11-28T00:00:00Z")
    shown_deliveries.show(deliveries, "account", "conn", {"tr_1": shown("expired"), "tr_2": shown("complete")})
    assert found() == ("expired", "", "2026-11-28T00:00:00Z")
    shown_deliveries.show(deliveries, "another account", "conn", {"tr_1": None})
    assert found()[0] == "expired"
    shown_deliveries.show(deliveries, "account", "conn", {"tr_1": None})
    assert found()[0] == "expired", "what was removed since had ended"

    deliveries.put("k", 1, ROW._replace(memory="{} "))
    assert found()[0] == "expired"
    deliveries.put("k", 2, ROW._replace(transfer_id="tr_9"))
    with deliveries.database.begin() as tx:
        row = tx.execute(sa.select(deliveries.table)).one()
    assert (row.status, row.recipients, row.sent_at, row.picked_up_count) == ("", "[]", None, 0)
    shown_deliveries.show(deliveries, "account", "conn", {"tr_9": shown("pending")})
    shown_deliveries.show(deliveries, "account", "conn", {"tr_9": None})
    shown_deliveries.show(deliveries, "account", "conn", {"tr_9": shown("pending")})
    assert found()[0] == "deleted"


@pytest.mark.parametrize("hook", ["sqlite"], indirect=True)
@pytest.mark.parametrize("older", [("bob", "ann"), ("ann", "bob"), ("Bob", "ANN")], ids=["order", "same", "form"])
def test_an_older_listing_in_another_order_or_form_takes_no_pickup_back(deliveries: Deliveries, older: Any) -> None:
    def show(**picked_up_at: str | None) -> None:
        people = [{"email": f"{each}@example.com", "picked_up_at": at} for each, at in picked_up_at.items()]
        count = sum(map(bool, picked_up_at.values()))
        shown_deliveries.show(
            deliveries, "account", "conn", {"tr_1": Shown("partial", "", 2, count, None, None, people)}
        )

    deliveries.put("k", 0, ROW)
    show(ann=None, bob="2026-11-28T00:00:00Z")
    show(**dict.fromkeys(older))
    with deliveries.database.begin() as tx:
        row = tx.execute(sa.select(deliveries.table)).one()
    picked_up = [each["email"].lower() for each in json.loads(row.recipients) if each["picked_up_at"]]
    assert (row.picked_up_count, picked_up) == (1, ["bob@example.com"])


def test_two_that_show_a_transfer_at_once_leave_the_later_status(deliveries, monkeypatch) -> None:
    def shown(status: str) -> dict[str, Shown | None]:
        return {"tr_1": Shown(status, "", 1, 0, None, None, [])}

    later = threading.Thread(target=shown_deliveries.show, args=(deliveries, "account", "conn", shown("complete")))
    changes = shown_deliveries._changes

    def overtaken(row: Any, now: Shown | None) -> dict[str, Any]:
        found = changes(row, now)
        if now and now.status == "pending":
            later.start()
            later.join(1.0)  # it waits for this transaction
        return found

    deliveries.put("k", 0, ROW)
    monkeypatch.setattr(shown_deliveries, "_changes", overtaken)
    shown_deliveries.show(deliveries, "account", "conn", shown("pending"))
    later.join()
    with deliveries.database.begin() as tx:
        assert tx.execute(sa.select(deliveries.table.c.status)).scalar() == "complete"
