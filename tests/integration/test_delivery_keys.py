"""A delivery key: one delivery, whatever run or task makes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.exceptions import DeliveriesUnavailable, DeliveryKeyInUse, StaleTry
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.airflow_names import AirflowFailException
from support.calls import ATTACH, CREATE, SEND, ApiCall, before
from support.connections import connection_json
from support.deliveries import billed
from support.keyed_tasks import KeyedTaskInstance, keyed_task, sqlite_connection
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
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    return tmp_path / "states.db"


@pytest.fixture
def deliver(connection: str, sandbox: Sandbox, states: Path, file: Path) -> Deliver:
    """Make the task of a run: ``deliver("run")``."""
    time, airflow = SimulatedClock(sandbox), dict[tuple[str, int], str]()

    def make(run_id: str, **arguments: Any) -> KeyedTaskInstance:
        return keyed_task(run_id, time, **{"airflow": airflow, "files": [str(file)], **arguments})

    return make


def test_another_run_gets_the_transfer_that_was_sent_under_its_key(deliver: Deliver, sandbox: Sandbox) -> None:
    sent = deliver("one").run()
    other = deliver("two")
    other.airflow["one", -1] = "running"  # it waits for pickup: a delivery that was sent is not waited for
    calls = len(sandbox.requests())

    assert other.run() == sent
    assert other.xcoms["transfer_id"] == sent["id"]
    assert list(billed(sandbox).values()) == [1]
    assert {call["method"] for call in sandbox.requests()[calls:]} <= {"GET"}

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
    with pytest.raises(AirflowFailException, match="account"):
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
    with pytest.raises(AirflowFailException, match=f"'k'.*{sent}"):
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
    with pytest.raises(AirflowFailException, match=f"{sent}.*report.csv"):
        anew.run()
    assert list(billed(sandbox)) == [sent]


@pytest.mark.parametrize("state", ["running", "queued", "deferred", "up_for_retry", "restarting", "scheduled"])
def test_while_its_owner_is_active_another_task_is_retried(deliver: Deliver, sandbox: Sandbox, state: str) -> None:
    first = deliver("one")
    with without_credit(sandbox):
        first.run()
    second = deliver("two", retries=1)
    second.airflow["one", -1] = state
    with pytest.raises(DeliveryKeyInUse, match="run one.*'k'"):
        second.run_once()
    assert not billed(sandbox)

    second.airflow["one", -1] = "failed"
    sent = second.run()["id"]
    assert again(first)["id"] == sent
    assert list(billed(sandbox)) == [sent]


def test_a_key_of_which_nothing_was_sent_may_be_used_with_other_input(deliver: Deliver, sandbox: Sandbox) -> None:
    first = deliver("one", subject="Wrong")
    with without_credit(sandbox):
        first.run()
    sent = deliver("two").run()
    assert sent["subject"] == "Report"
    assert list(billed(sandbox)) == [sent["id"]]
    with pytest.raises(AirflowFailException, match=f"'k'.*{sent['id']}"):
        again(first)


@pytest.mark.parametrize("delivery_key", ["k", None], ids=["another run", "the next try"])
@pytest.mark.parametrize("call", [CREATE, ATTACH, SEND], ids=["create", "attach", "send"])
def test_an_owner_that_was_overtaken_sends_nothing_and_changes_no_file(
    deliver: Deliver, sandbox: Sandbox, file: Path, delivery_key: str | None, call: ApiCall
) -> None:
    """It is taken for dead right before one of its calls; who overtakes it has another file, and delivers."""
    content = {"name": file.name, "content": b"first"}
    first = deliver("one", delivery_key=delivery_key, files=content)
    other = {**content, "content": b"the second"}
    second = deliver("two" if delivery_key else "one", delivery_key=delivery_key, files=other)
    second.try_number, second.max_tries = (0, 0) if delivery_key else (1, 1)

    with before(call, second.run), suppress(Exception):
        first.run()
    assert list(billed(sandbox).elements()) == [second.result["id"]]
    assert [file["size"] for file in sandbox.transfer(second.result["id"])["files"]] == [len(b"the second")]


# What was lost.


def test_a_delivery_whose_memory_goes_before_its_send_stops(deliver: Deliver, sandbox: Sandbox, states: Path) -> None:
    with before(ATTACH, lambda: memory.forget_keys(states)), pytest.raises(StaleTry, match="sends nothing"):
        deliver("one").run()
    assert not billed(sandbox)


def test_another_users_connection_does_not_send_what_it_cannot_see(
    deliver: Deliver, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = deliver("one").run()["id"]
    monkeypatch.setattr(sandbox, "transfer_api_key", sandbox.new_key("other"))
    monkeypatch.setenv(CONNECTION, connection_json(sandbox))
    with pytest.raises(AirflowFailException, match=f"{sent}.*another user.*with another delivery_key"):
        deliver("two").run()
    assert list(billed(sandbox)) == [sent]


# What is refused.


@pytest.mark.parametrize("key", ["", "None", " k", "k ", "a\nb", "a\0", "\udce9", 7, ["k"]])
def test_what_can_be_no_key_is_refused(deliver: Deliver, sandbox: Sandbox, key: Any) -> None:
    with pytest.raises(AirflowFailException, match="delivery_key"):
        deliver("one", delivery_key=key, _airflow_from_mapped=True).run()
    assert not sandbox.requests()


@pytest.mark.parametrize("key", ["statements-2026-01-31", "x" * 2_000, "Straße 報告 {}?%s[a]", "k"])
def test_other_texts_are_keys(deliver: Deliver, key: str) -> None:
    sent = deliver("one", delivery_key=key).run()["id"]
    assert deliver("two", delivery_key=key).run()["id"] == sent


def test_without_a_database_a_key_is_refused(
    connection: str, sandbox: Sandbox, file: Path, several_machines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = memory.kept_in_a_database(keyed_task("one", SimulatedClock(sandbox), files=[str(file)]))
    with pytest.raises(AirflowFailException, match=r"set \w+_conn_id in the section"):
        task.run()
    assert not sandbox.requests()
    memory.keep_keys_in(monkeypatch, sqlite_connection(file.with_name("states.db")))
    again(task)


def test_on_one_machine_a_key_needs_no_setting(
    connection: str, sandbox: Sandbox, file: Path, single_machine: Path
) -> None:
    one, two = (keyed_task(run, SimulatedClock(sandbox), files=[str(file)]) for run in ("one", "two"))
    assert one.run() == two.run()
    assert len(billed(sandbox)) == 1


@pytest.mark.parametrize("tries", [0, 1], ids=["first try", "retry"])
def test_a_database_that_is_down_fails_the_delivery_before_anything_is_created(
    deliver: Deliver, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    down = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": "secret", "schema": "d"}
    memory.keep_keys_in(monkeypatch, json.dumps(down))
    task = deliver("one")
    task.try_number = tries
    with pytest.raises(DeliveriesUnavailable, match="Nothing more is done.*connection 'states'"):
        task.run()
    assert not sandbox.requests()


# Deferrals.


def test_who_waits_for_pickup_waits_for_the_transfer_of_the_key(
    deliver: Deliver, sandbox: Sandbox, recipients_pick_up: None
) -> None:
    done = [deliver(run, wait=True, deferrable=True, poke_interval=1).run() for run in ("one", "two")]
    assert [one["status"] for one in done] == ["complete"] * 2
    assert len(billed(sandbox)) == 1
