"""What changes while a task makes its last checks, or has heard nothing of: each was once sent twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException, AirflowTaskTimeout
from outbound_transfer.client import client
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol.errors import ChecksOutdated, NotFound
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.warehouse.errors import DeliveryKeyInUse
from support.keyed_tasks import STATE_CONN_ID, keyed_task, sqlite_connection
from support.tasks import FakeTaskInstance, ProcessCrashed, SimulatedClock, again, dying_after

REPORT: dict[str, Any] = {"subject": "Report", "recipients": ["ann@example.com"]}
MAY_BE_SENT = "may be this very delivery"

Make = Callable[..., FakeTaskInstance]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.csv").write_text("a")
    return [str(tmp_path / "a.csv")]


@pytest.fixture
def deliver(task, files) -> Make:
    return lambda **arguments: task(DeliverFilesOperator, **{"files": files, **REPORT, **arguments})


@contextmanager
def before(operation: Operation, *changes: Callable[[], object], skip: int = 0) -> Iterator[None]:
    """Something changes right before a call, after some such calls."""
    send, left = client.send, iter([*[None] * skip, *changes])

    def change_and_send(*arguments: Any) -> Any:
        if arguments[2].operation is operation and (due := next(left, None)):
            due()
        return send(*arguments)

    with mock.patch.object(client, "send", change_and_send):
        yield


def mapped(ti: FakeTaskInstance, index: int, *, clear_number: int) -> FakeTaskInstance:
    ti.map_index, ti.clear_number = index, clear_number
    return ti


def test_what_a_removal_finds_sent_stays_sent_once_it_is_deleted(deliver, sandbox, hook) -> None:
    """The send of a killed try arrives between the read of the next one and its removal of the draft."""
    ti = deliver()
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 502})
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        ti.run()
    with before(Operation.DISCARD, lambda: hook.send_transfer(ti.xcoms["transfer_id"])):
        sent = again(ti)["id"]
    sandbox.plan_faults({"kind": "error", "method": "GET", "path": f"*/{sent}", "status": 404})  # it is deleted

    with pytest.raises(AirflowFailException, match=f"{sent} was sent by an earlier try, or may have been"):
        again(ti)

    assert sandbox.sent() == [sent]


def test_an_item_that_another_index_has_sent_is_not_sent_by_a_retry_of_the_last_step(task, sandbox, files) -> None:
    def made(index: int, subject: str) -> tuple[FakeTaskInstance, FakeTaskInstance]:
        create = mapped(task(CreateTransferOperator, **{**REPORT, "subject": subject}), index, clear_number=0)
        draft = create.run()
        attach = mapped(task(AttachFilesOperator, transfer_id=draft, files=files), index, clear_number=0)
        attach.task_id = "attach"
        attach.upstream = {"create": create}
        attach.run()
        send = mapped(task(SendTransferOperator, transfer_id=draft, slot_timeout=60, retries=1), index, clear_number=0)
        send.upstream = {"create": create, "attach": attach}
        return create, send

    sandbox.patch_account(outstanding_transfer_limit=0)
    _, send = made(0, "X")

    def the_list_changes_its_order() -> None:
        """Index 1, which is given X now, is cleared."""
        send.clear_number = 1
        sandbox.patch_account(outstanding_transfer_limit=9)
        made(1, "X")[1].run()

    send.before_retry = the_list_changes_its_order
    with pytest.raises(AirflowFailException, match=MAY_BE_SENT):
        send.run()
    assert len(sandbox.sent()) == 1


@pytest.mark.parametrize("at", ["a wait", "a silence", "Airflow"])
def test_a_search_that_had_to_wait_is_made_again(deliver, sandbox, monkeypatch, at) -> None:
    """The service lists a transfer to look at; before that read is answered, another index sends this one's item."""
    other = mapped(deliver(files=[{"name": "other.csv", "content": "other"}]), 1, clear_number=0)
    other.run()
    ti = mapped(deliver(deferrable=False), 0, clear_number=1)

    sleep, ask = ti.time.sleep, FakeTaskInstance.get_task_states

    def the_other_index_sends(seconds: float = 120) -> None:
        ti.time.sleep = sleep
        monkeypatch.setattr(FakeTaskInstance, "get_task_states", ask)
        mapped(deliver(), 2, clear_number=0).run()
        sleep(seconds)

    def refuse() -> None:
        sandbox.plan_faults({"kind": "error", "status": 429, "code": "rate_limited", "headers": {"Retry-After": "60"}})

    def ask_late(*arguments: Any, **options: Any) -> Any:
        the_other_index_sends()
        return ask(*arguments, **options)

    if at == "a wait":
        ti.time.sleep = the_other_index_sends
    if at == "Airflow":
        monkeypatch.setattr(FakeTaskInstance, "get_task_states", ask_late)
    changes = {"a wait": [refuse], "a silence": [the_other_index_sends], "Airflow": []}
    third = mapped(deliver(files=[{"name": "third.csv", "content": "third"}]), 3, clear_number=0)
    # The first read is that of the search before the draft, which saves an upload; no search reads a transfer again.
    with (
        before(Operation.ATTACH, third.run),
        before(Operation.GET, *changes[at], skip=1),
        pytest.raises(AirflowFailException, match=MAY_BE_SENT),
    ):
        ti.run()
    assert len(sandbox.sent()) == 3


def test_checks_that_always_wait_end_the_try(deliver, sandbox) -> None:
    mapped(deliver(files=[{"name": "other.csv", "content": "other"}]), 1, clear_number=0).run()
    ti = mapped(deliver(deferrable=False, keep_draft=True), 0, clear_number=1)
    with mock.patch.object(FakeTaskInstance, "get_task_states", _after(ti, 30)), pytest.raises(ChecksOutdated):
        ti.run()
    assert len(sandbox.sent()) == 1


def _after(ti: FakeTaskInstance, seconds: float) -> Any:
    ask = FakeTaskInstance.get_task_states

    def ask_late(*arguments: Any, **options: Any) -> Any:
        ti.time.now += seconds
        return ask(*arguments, **options)

    return ask_late


def test_an_execution_timeout_while_it_waits_for_a_slot_leaves_nothing_in_doubt(deliver, sandbox, hook) -> None:
    """Every attempt at the send was refused, so the draft is removed, as after every error that ends the task."""
    sandbox.patch_account(outstanding_transfer_limit=0)
    ti = deliver(deferrable=False)

    def time_out(seconds: float) -> None:
        raise AirflowTaskTimeout("Timeout, PID: 1")

    ti.time.sleep = time_out
    with pytest.raises(AirflowTaskTimeout) as failed:
        ti.run()
    assert ti.xcoms["transfer_id"] not in str(failed.value)
    with pytest.raises(NotFound):
        hook.get_transfer(ti.xcoms["transfer_id"])


def test_what_a_read_finds_sent_stays_sent_once_it_is_deleted(deliver, sandbox, hook) -> None:
    """The send of a killed try arrives once the next one is killed, too, which was about to remove the draft."""
    ti = deliver(retries=2)
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 502})

    def die() -> None:
        raise ProcessCrashed

    tries = iter([lambda: None, lambda: hook.send_transfer(ti.xcoms["transfer_id"])])
    ti.before_retry = lambda: next(tries)()
    with dying_after(Operation.SEND), before(Operation.DISCARD, die):
        sent = ti.run()["id"]
    sandbox.plan_faults({"kind": "error", "method": "GET", "path": f"*/{sent}", "status": 404})  # it is deleted

    with pytest.raises(AirflowFailException, match=f"{sent} was sent by an earlier try, or may have been"):
        again(ti)

    assert sandbox.sent() == [sent]


def test_a_run_that_was_refused_does_not_say_that_it_has_made_what_another_sent(deliver, sandbox) -> None:
    """The other run would take its own transfer for this one's, and send again."""
    first, refused = deliver(), deliver()
    first.run_id, first.start_date = "earlier", refused.start_date - timedelta(minutes=1)
    first.of_other_runs, refused.of_other_runs = [refused], [first]
    sent = first.run()["id"]
    first.xcoms.clear()
    refused.begin_try()  # killed before it stores anything
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=MAY_BE_SENT):
            again(refused)
    assert refused.xcoms == {}
    first.store.values.clear()
    with pytest.raises(AirflowFailException, match=MAY_BE_SENT):
        again(first)
    assert sandbox.sent() == [sent]


def test_a_key_that_goes_while_another_run_holds_it_is_settled_first(
    connection, sandbox, files, tmp_path, monkeypatch
) -> None:
    """A send under it has landed unheard: without the key, it would be sent again."""
    monkeypatch.setenv("AIRFLOW_CONN_STATES", sqlite_connection(tmp_path / "states.db"))
    monkeypatch.setenv(STATE_CONN_ID, "states")
    time, airflow = SimulatedClock(sandbox), dict[Any, str]()
    one, two = (keyed_task(run, time, airflow=airflow, files=files) for run in ("one", "two"))
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        one.run()
    airflow["one", -1] = "failed"
    with dying_after(Operation.GET), pytest.raises(ProcessCrashed):
        two.run()
    airflow["two", -1] = "up_for_retry"
    with pytest.raises(DeliveryKeyInUse):
        again(one, delivery_key=None)
    again(two)
    with pytest.raises(AirflowFailException, match="was sent, or may have been, under the delivery_key"):
        again(one, delivery_key=None)
    assert len(sandbox.sent()) == 1
