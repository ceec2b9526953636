"""What changes while a task makes its last checks, or has heard nothing of: each was once sent twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support import memory
from support.airflow_names import AirflowFailException, AirflowTaskTimeout
from support.calls import DISCARD, GET, SEND, ProcessCrashed, before, die, dying_after
from support.keyed_tasks import keyed_task, sqlite_connection
from support.oracle import says_sent
from support.tasks import FakeTaskInstance, SimulatedClock, again, at_the_next_wait

REPORT: dict[str, Any] = {"subject": "Report", "recipients": ["ann@example.com"]}
Make = Callable[..., FakeTaskInstance]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.csv").write_text("a")
    return [str(tmp_path / "a.csv")]


@pytest.fixture
def deliver(task, files) -> Make:
    return lambda **arguments: task(DeliverFilesOperator, **{"files": files, **REPORT, **arguments})


def mapped(ti: FakeTaskInstance, index: int) -> FakeTaskInstance:
    ti.map_index = index
    return ti


def test_what_a_removal_finds_sent_stays_sent_once_it_is_deleted(deliver, sandbox, hook) -> None:
    """The send of a killed try arrives between the read of the next one and its removal of the draft."""
    ti = deliver()
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 502})
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        ti.run()
    with before(DISCARD, lambda: hook.send_transfer(ti.xcoms["transfer_id"])):
        sent = again(ti)["id"]
    sandbox.plan_faults({"kind": "error", "method": "GET", "path": f"*/{sent}", "status": 404})  # it is deleted

    with pytest.raises(AirflowFailException, match=sent):
        again(ti)

    assert sandbox.sent() == [sent]


def test_an_item_that_another_index_has_sent_is_not_sent_by_a_retry_of_the_last_step(task, sandbox, files) -> None:
    def made(index: int, subject: str) -> tuple[FakeTaskInstance, FakeTaskInstance]:
        create = mapped(task(CreateTransferOperator, "create", **{**REPORT, "subject": subject}), index)
        draft = create.run()
        attach = mapped(task(AttachFilesOperator, "attach", transfer_id=draft, files=files), index)
        attach.upstream = {"create": create}
        attach.run()
        send = mapped(task(SendTransferOperator, "send", transfer_id=draft, slot_timeout=60, retries=1), index)
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
    with pytest.raises(AirflowFailException, match="tr_"):
        send.run()
    assert len(sandbox.sent()) == 1


def test_an_execution_timeout_while_it_waits_for_a_slot_leaves_nothing_in_doubt(deliver, sandbox) -> None:
    """Every attempt at the send was refused, so the draft is removed, as after every error that ends the task."""
    sandbox.patch_account(outstanding_transfer_limit=0)
    ti = deliver(deferrable=False)

    def time_out() -> None:
        raise AirflowTaskTimeout("Timeout, PID: 1")

    at_the_next_wait(ti.time, time_out)
    with pytest.raises(AirflowTaskTimeout) as failed:
        ti.run()
    assert not says_sent(failed.value, ti.xcoms["transfer_id"])
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        sandbox.transfer(ti.xcoms["transfer_id"])


def test_what_a_read_finds_sent_stays_sent_once_it_is_deleted(deliver, sandbox, hook) -> None:
    """The send of a killed try arrives once the next one is killed, too, which was about to remove the draft."""
    ti = deliver(retries=2)
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 502})

    tries = iter([lambda: None, lambda: hook.send_transfer(ti.xcoms["transfer_id"])])
    ti.before_retry = lambda: next(tries)()
    with dying_after(SEND), before(DISCARD, die):
        sent = ti.run()["id"]
    sandbox.plan_faults({"kind": "error", "method": "GET", "path": f"*/{sent}", "status": 404})  # it is deleted

    with pytest.raises(AirflowFailException, match=sent):
        again(ti)

    assert sandbox.sent() == [sent]


def test_a_key_that_goes_while_another_run_holds_it_is_settled_first(
    connection, sandbox, files, tmp_path, monkeypatch
) -> None:
    """A send under it has landed unheard: without the key, it would be sent again."""
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    time, airflow = SimulatedClock(sandbox), dict[Any, str]()
    one, two = (keyed_task(run, time, airflow=airflow, files=files) for run in ("one", "two"))
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        one.run()
    airflow["one", -1] = "failed"
    with dying_after(GET), pytest.raises(ProcessCrashed):
        two.run()
    airflow["two", -1] = "up_for_retry"
    with pytest.raises(AirflowFailException, match="sent.*delivery_key"):
        again(one, delivery_key=None)
    again(two)
    with pytest.raises(AirflowFailException, match="sent.*delivery_key"):
        again(one, delivery_key=None)
    assert len(sandbox.sent()) == 1
