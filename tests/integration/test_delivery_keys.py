"""A delivery key: one delivery, whatever run or task makes it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.airflow_compat.task_try import StaleTry
from outbound_transfer.client import client
from outbound_transfer.delivery.memory import Memory, Scope, Writer
from outbound_transfer.delivery.memory_store import RowMemoryStore, StateLost
from outbound_transfer.protocol.ids import check_delivery_key
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.protocol.models import to_builtins
from outbound_transfer.warehouse import config
from outbound_transfer.warehouse.errors import DeliveryKeyInUse, MemoryUnavailable
from outbound_transfer.warehouse.local_file import LOCAL_FILE
from outbound_transfer_sandbox.testing import Sandbox
from support.connections import connection_json
from support.deliveries import billed
from support.keyed_tasks import STATE_CONN_ID, KeyedTaskInstance, keyed_task, sqlite_connection
from support.tasks import SimulatedClock, again, without_credit

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

Deliver = Callable[..., KeyedTaskInstance]
Elsewhere = Callable[[], Sandbox]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.csv"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database of the keys."""
    monkeypatch.setenv("AIRFLOW_CONN_STATES", sqlite_connection(tmp_path / "states.db"))
    monkeypatch.setenv(STATE_CONN_ID, "states")
    return tmp_path / "states.db"


@pytest.fixture
def deliver(connection: str, sandbox: Sandbox, states: Path, file: Path) -> Deliver:
    """Make the task of a run: ``deliver("run")``."""
    time, airflow = SimulatedClock(sandbox), dict[tuple[str, int], str]()

    def make(run_id: str, **arguments: Any) -> KeyedTaskInstance:
        return keyed_task(run_id, time, **{"airflow": airflow, "files": [str(file)], **arguments})

    return make


def change(states: Path, statement: str) -> None:
    with closing(sqlite3.connect(states)) as connection:
        connection.execute(statement)
        connection.commit()


def test_another_run_gets_the_transfer_that_was_sent_under_its_key(deliver: Deliver, sandbox: Sandbox) -> None:
    sent = deliver("one").run()
    other = deliver("two")
    other.airflow["one", -1] = "running"  # it waits for pickup: a delivery that was sent is not waited for
    calls = len(sandbox.requests())

    assert other.run() == sent
    assert other.xcoms["transfer_id"] == sent["id"]
    assert list(billed(sandbox).values()) == [1]
    assert [call["method"] for call in sandbox.requests()[calls:]] == ["GET"]

    index = deliver("three")
    index.map_index = 3
    assert index.run() == sent


def test_keys_are_deliveries_of_their_own_and_so_are_accounts(
    deliver: Deliver, sandbox: Sandbox, elsewhere: Elsewhere
) -> None:
    assert deliver("one").run()["id"] != deliver("two", delivery_key="K").run()["id"]
    other = elsewhere()
    deliver("three").run()
    assert (len(billed(sandbox)), len(billed(other))) == (2, 1)


def test_what_was_sent_before_a_clear_is_not_sent_again_in_another_account(
    deliver: Deliver, sandbox: Sandbox, elsewhere: Elsewhere
) -> None:
    task = deliver("one")
    task.run()
    other = elsewhere()
    with pytest.raises(AirflowFailException, match="in the account that this task had before"):
        again(task)
    assert (len(billed(sandbox)), len(billed(other))) == (1, 0)


def test_what_was_not_sent_is_delivered_where_the_connection_leads(
    deliver: Deliver, sandbox: Sandbox, elsewhere: Elsewhere
) -> None:
    task = deliver("one")
    with without_credit(sandbox):
        task.run()
    other = elsewhere()
    again(task)
    assert (len(billed(sandbox)), len(billed(other))) == (0, 1)


@pytest.mark.parametrize("changes", [{"subject": "Other"}, {"recipients": ["bob@example.com"]}, {"message": "Hi"}])
def test_another_delivery_under_a_key_that_was_delivered_is_refused(
    deliver: Deliver, sandbox: Sandbox, changes: dict[str, Any]
) -> None:
    sent = deliver("one").run()["id"]
    with pytest.raises(AirflowFailException, match=f"'k' has already delivered transfer {sent}, with other input"):
        deliver("two", **changes).run()
    assert list(billed(sandbox)) == [sent]


def test_a_run_that_is_made_anew_under_its_id_may_not_have_other_files(
    deliver: Deliver, sandbox: Sandbox, file: Path
) -> None:
    sent = deliver("one").run()["id"]
    anew = deliver("one")
    anew.start_date += timedelta(hours=1)
    assert anew.run()["id"] == sent
    file.write_bytes(b"CONTENT")
    anew.try_number = 0
    with pytest.raises(AirflowFailException, match=r"with other input: report\.csv has other content"):
        anew.run()
    assert list(billed(sandbox)) == [sent]


@pytest.mark.parametrize("state", ["running", "queued", "deferred", "up_for_retry", "restarting", "scheduled"])
def test_while_its_owner_is_active_another_task_is_retried(deliver: Deliver, sandbox: Sandbox, state: str) -> None:
    first = deliver("one", keep_draft=True)
    with without_credit(sandbox):
        first.run()
    second = deliver("two", retries=1)
    second.airflow["one", -1] = state
    with pytest.raises(DeliveryKeyInUse, match=r"Task dag\.task of run one delivers under delivery key 'k'"):
        second.run_once()
    assert not billed(sandbox)

    second.airflow["one", -1] = "failed"
    draft = first.xcoms["transfer_id"]
    assert second.run()["id"] == draft
    assert again(first)["id"] == draft
    assert list(billed(sandbox)) == [draft]


def test_an_unsent_draft_of_other_input_is_replaced(deliver: Deliver, sandbox: Sandbox) -> None:
    first = deliver("one", keep_draft=True, subject="Wrong")
    with without_credit(sandbox):
        first.run()
    sent = deliver("two").run()
    assert sent["subject"] == "Report"
    assert list(billed(sandbox)) == [sent["id"]]
    with pytest.raises(AirflowFailException, match="'k' has already delivered"):
        again(first)


@pytest.mark.parametrize("delivery_key", ["k", None], ids=["another run", "the next try"])
def test_an_owner_that_was_overtaken_replaces_no_file(
    deliver: Deliver, sandbox: Sandbox, file: Path, delivery_key: str | None
) -> None:
    """It is taken for dead in its second try; the new owner's file has a size that it has used before."""
    versions = iter([b"first", b"the second"])
    content = {"name": file.name, "content": lambda: next(versions)}
    arguments = {"keep_draft": True, "delivery_key": delivery_key, "files": content}
    first = deliver("one", **arguments)
    with without_credit(sandbox):
        first.run()
    first.clear()
    other = {**content, "content": b"third"}
    second = deliver("two" if delivery_key else "one", **{**arguments, "files": other})
    second.store, second.try_number, second.clear_number = first.store, 2, 2
    second.max_tries = 9
    send, has_attached = client.send, []

    def be_overtaken(*arguments: Any) -> Any:
        if arguments[2].operation is Operation.ATTACH and not has_attached:
            has_attached.append(True)
            with without_credit(sandbox):
                second.run()
        return send(*arguments)

    overtaken = (StaleTry, StateLost)
    with mock.patch.object(client, "send", be_overtaken), pytest.raises(overtaken):
        first.run()
    requests = sandbox.requests()
    assert [call["status"] for call in requests if call["path"].endswith("/files")] == [201, 201, 404]
    assert [call["status"] for call in requests if call["method"] == "DELETE"] == [204] * 2

    sent = again(second)
    assert [file["size"] for file in sent["files"]] == [len(b"third")]
    assert list(billed(sandbox)) == [sent["id"]]


def test_who_goes_on_with_a_draft_reads_it_once(deliver: Deliver, sandbox: Sandbox) -> None:
    first = deliver("one", keep_draft=True)
    with without_credit(sandbox):
        first.run()
    assert [call["method"] for call in sandbox.requests()] == ["POST"] * 3
    again(first)
    assert [call["method"] for call in sandbox.requests()[3:]] == ["GET", "POST"]


# What was lost.


@pytest.mark.parametrize("is_known_to_lack_its_record", [False, True])
def test_a_run_asks_about_a_lost_row_whenever_it_was_sent(
    deliver: Deliver, sandbox: Sandbox, states: Path, is_known_to_lack_its_record: bool
) -> None:
    first = deliver("one")
    sent = first.run()["id"]
    sandbox.advance_clock(30 * 86_400)
    later = deliver("two")
    later.start_date += timedelta(days=30)
    if is_known_to_lack_its_record:
        change(states, "DELETE FROM outbound_transfer_memory")
        with pytest.raises(AirflowFailException, match="may be this very delivery"):
            again(first)
    else:
        assert later.run()["id"] == sent
        change(states, "DELETE FROM outbound_transfer_memory")
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"Transfer {sent} may be this very delivery"):
            again(later)
    assert list(billed(sandbox)) == [sent]


def test_a_lost_row_is_asked_about_with_the_transfers_of_other_keys_left_out(
    deliver: Deliver, sandbox: Sandbox, states: Path
) -> None:
    other, task = deliver("other", delivery_key="other"), deliver("one")
    known = other.run()["id"]
    with without_credit(sandbox):
        task.run()
    change(states, "DELETE FROM outbound_transfer_memory WHERE delivery_key = 'k'")
    assert again(task)["id"] != known
    assert len(billed(sandbox)) == 2


def test_a_row_that_goes_during_the_delivery_stops_it(deliver: Deliver, sandbox: Sandbox, states: Path) -> None:
    task = deliver("one")
    check = task.get_task_states

    def lose(**arguments: Any) -> Any:
        change(states, "DELETE FROM outbound_transfer_memory")
        return check(**arguments)

    task.get_task_states = lose  # type: ignore[method-assign]
    with pytest.raises(StaleTry, match="The row of delivery key 'k' is gone"):
        task.run()
    assert not billed(sandbox)


def test_another_users_connection_does_not_send_what_it_cannot_see(
    deliver: Deliver, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = deliver("one").run()["id"]
    monkeypatch.setattr(sandbox, "transfer_api_key", sandbox.new_key("other"))
    monkeypatch.setenv(CONNECTION, connection_json(sandbox))
    with pytest.raises(AirflowFailException, match=f"{sent} was sent by an earlier try.*add '{sent}' to resend"):
        deliver("two").run()
    assert list(billed(sandbox)) == [sent]
    second = deliver("two", resend=sent).run()["id"]
    assert list(billed(sandbox)) == [sent, second]


# What is refused.


@pytest.mark.parametrize("key", ["", "None", " k", "k ", "a\nb", "a\0", "\udce9", 7, ["k"]])
def test_what_can_be_no_key_is_refused(deliver: Deliver, sandbox: Sandbox, key: Any) -> None:
    with pytest.raises(AirflowFailException, match="delivery_key must be a text of printable characters"):
        deliver("one", delivery_key=key, _airflow_from_mapped=True).run()
    assert not sandbox.requests()


@pytest.mark.parametrize("key", ["statements-2026-01-31", "x" * 2_000, "Straße 報告 {}?%s[a]", "k"])
def test_other_texts_are_keys(deliver: Deliver, key: str) -> None:
    assert check_delivery_key(key) == key
    sent = deliver("one", delivery_key=key).run()["id"]
    assert deliver("two", delivery_key=key).run()["id"] == sent


def test_without_a_database_a_key_is_refused(
    deliver: Deliver, sandbox: Sandbox, several_machines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STATE_CONN_ID)
    with pytest.raises(AirflowFailException, match=r"delivery_key needs a table .* set state_conn_id in the section"):
        deliver("one").run()
    assert not sandbox.requests()
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "states")
    deliver("one").run()


def test_on_one_machine_a_key_needs_no_setting(
    deliver: Deliver, sandbox: Sandbox, single_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STATE_CONN_ID)
    sent = deliver("one").run()["id"]
    assert deliver("two").run()["id"] == sent
    with closing(sqlite3.connect(single_machine / LOCAL_FILE)) as connection:
        found = connection.execute("SELECT delivery_key, transfer_id FROM outbound_transfer_memory").fetchall()
    assert found == [("k", sent)]


@pytest.mark.parametrize("tries", [0, 1], ids=["first try", "retry"])
@pytest.mark.parametrize("is_configured_by", ["STATE_CONN_ID", "LEDGER_CONN_ID"])
def test_a_database_that_is_down_fails_the_delivery_before_anything_is_created(
    deliver: Deliver, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, is_configured_by: str, tries: int
) -> None:
    down = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": "secret", "schema": "d"}
    monkeypatch.setenv("AIRFLOW_CONN_STATES", json.dumps(down))
    monkeypatch.delenv(STATE_CONN_ID)
    monkeypatch.setenv(f"AIRFLOW__OUTBOUND_TRANSFER__{is_configured_by}", "states")
    task = deliver("one")
    task.try_number = tries
    with pytest.raises(
        MemoryUnavailable, match=r"^Nothing was sent, as .* cannot be claimed: connection 'states' fails"
    ):
        task.run()
    assert not sandbox.requests()


# A key's delivery that is sent once more.


# Deferrals.


def test_who_waits_for_pickup_waits_for_the_transfer_of_the_key(
    deliver: Deliver, sandbox: Sandbox, recipients_pick_up: None
) -> None:
    done = [deliver(run, wait=True, deferrable=True, poke_interval=1).run() for run in ("one", "two")]
    assert [one["status"] for one in done] == ["complete"] * 2
    assert len(billed(sandbox)) == 1


class OldRow:
    """A row of a delivery key, from a backup."""

    def __init__(self, memory: Memory) -> None:
        self.memory = to_builtins(memory)

    def get(self, key: str, default: Any = None) -> Any:
        return self.memory


@pytest.mark.parametrize(("by", "expected", "is_complete"), [("own", 2, True), ("own", 3, False), ("other", 3, True)])
def test_an_older_row_of_a_backup_is_a_gap_in_the_tries(by, expected, is_complete) -> None:
    memory = Memory(Writer(2, 3, by), Scope("acme.example.com", "key", "statements"))
    store = RowMemoryStore(OldRow(memory), expected=expected, task="own")
    assert store.begin() == (memory, is_complete)


def test_a_key_that_was_sent_and_has_lost_its_memory_leaves_no_draft(deliver: Deliver, sandbox: Sandbox) -> None:
    deliver("one").run()
    with config.require_memory_place("a test").open().warehouse.transaction() as tx:
        tx.execute("UPDATE outbound_transfer_memory SET memory = '{}' WHERE delivery_key IS NOT NULL")
    calls = len(sandbox.requests())
    with pytest.raises(StateLost, match="was sent, and what its row remembered of that is lost"):
        deliver("two").run()
    assert len(sandbox.requests()) == calls


@pytest.mark.parametrize("other_key_was_cleared", [False, True])
def test_what_another_key_suspects_is_not_taken_for_that_keys(
    deliver: Deliver, sandbox: Sandbox, states: Path, other_key_was_cleared: bool
) -> None:
    """The table of keys is lost. The tasks of two keys are cleared, each by its user.

    1. Run "a" delivers T under key "a"; run "b" fails before its send under key "b" (no credit). 2. The rows are lost.
    3. "b" is cleared: refused, as T "may be this very delivery"; that is stored in the row of "b". 4. "a" is cleared.
    """
    a, b = deliver("a", delivery_key="a"), deliver("b", delivery_key="b")
    sent = a.run()["id"]
    with without_credit(sandbox):
        b.run()
    change(states, "DELETE FROM outbound_transfer_memory WHERE delivery_key IS NOT NULL")
    if other_key_was_cleared:
        with pytest.raises(AirflowFailException, match=f"Transfer {sent} may be this very delivery"):
            again(b)
    with pytest.raises(AirflowFailException, match=f"Transfer {sent} may be this very delivery"):
        again(a)
    assert list(billed(sandbox)) == [sent]
