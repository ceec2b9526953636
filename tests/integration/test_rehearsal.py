"""A rehearsal: everything but the send, and no draft stays. Only `rehearse` stands between it and a real delivery."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.decorators.deliver_files import deliver_files_task
from outbound_transfer.exceptions import NotFound, Rehearsed
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from support import memory
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import SEND, after
from support.deliveries import BOTH_MODES, DELIVERY, counts
from support.keyed_tasks import keyed_task, sqlite_connection
from support.tasks import FakeTaskInstance, SimulatedClock, task_instance

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture
def time(sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def rehearse(monkeypatch) -> Callable[[bool], None]:
    def rehearse(is_on: bool) -> None:
        extra = json.loads(os.environ[CONNECTION])
        monkeypatch.setenv(CONNECTION, json.dumps({**extra, "extra": {**extra["extra"], "rehearse": is_on}}))

    return rehearse


@pytest.fixture
def make(files, time, monkeypatch) -> Callable[..., FakeTaskInstance]:
    monkeypatch.setenv("AIRFLOW_CONN_ROWS", "sqlite:///%3Amemory%3A")
    query = {"sql_conn_id": "rows", "sql": "SELECT 1 AS id", "file_name": "orders.csv"}

    def make(kind: str, **arguments: Any) -> FakeTaskInstance:
        if kind == "query":
            return task_instance(SqlToOutboundTransferOperator, time, **query, **DELIVERY, **arguments)
        if kind == "decorator":
            decorated = deliver_files_task(lambda: files, task_id="decorated", **DELIVERY, **arguments)
            return FakeTaskInstance(lambda: decorated().operator, time, task_id="decorated")
        if kind == "key":
            return keyed_task("run", time, files=files, **arguments)
        return task_instance(DeliverFilesOperator, time, **{"files": files, **DELIVERY, **arguments})

    return make


def rehearsed(task: FakeTaskInstance, sandbox: Any) -> dict[str, Any]:
    """Run the task, which must be skipped with no transfer sent and no draft left; return its result."""
    sent = len(sandbox.ledger())
    with pytest.raises(AirflowSkipException, match="Rehearsal: transfer 'tr_.* Nothing is sent"):
        task.run()
    assert len(sandbox.ledger()) == sent
    result = task.xcoms["return_value"]
    with OutboundTransferHook() as hook, pytest.raises(NotFound):
        hook.get_transfer(result["id"])
    return dict(result)


@pytest.mark.parametrize("kind", ["files", "query", "decorator", "key"])
def test_everything_but_the_send_is_done(make, sandbox, rehearse, kind, tmp_path, monkeypatch) -> None:
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    rehearse(True)
    task = make(kind)
    result = rehearsed(task, sandbox)
    assert result["status"] == "rehearsed"
    assert [each["email"] for each in result["recipients"]] == ["ann@example.com"]
    assert {file["name"] for file in result["files"]} == ({"orders.csv"} if kind == "query" else {"a.csv", "b.csv"})
    assert counts(sandbox)["POST", "send", 200] == 0
    rehearse(False)
    task.clear()
    assert task.run()["status"] == "pending", "a rehearsal leaves nothing behind that stops the delivery"
    assert counts(sandbox)["POST", "send", 200] == 1


@BOTH_MODES
def test_the_option_rehearses_on_every_connection_also_what_is_to_wait(make, sandbox, monkeypatch, deferrable) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__REHEARSE", "True")
    rehearsed(make("files", deferrable=deferrable, retries=1, wait=True), sandbox)


def test_a_rehearsal_runs_the_checks(make, sandbox, rehearse, files) -> None:
    rehearse(True)
    Path(files[0]).unlink()
    with pytest.raises(Exception, match=r"a\.csv"):
        make("files").run()
    with pytest.raises(AirflowFailException, match="recipient"):
        make("files", recipients=["nobody"], _airflow_from_mapped=True).run()


@pytest.mark.parametrize("ends", [False, True], ids=["", "it ends before the send"])
def test_a_rehearsal_of_three_tasks(time, sandbox, rehearse, files, ends) -> None:
    rehearse(True)
    create = task_instance(CreateTransferOperator, time, **DELIVERY)
    draft = create.run()
    attach = task_instance(AttachFilesOperator, time, transfer_id=draft, files=files)
    attach.run()
    rehearse(not ends)
    send = task_instance(SendTransferOperator, time, transfer_id=draft)
    send.upstream = {"create": create, "attach": attach}
    result = rehearsed(send, sandbox)
    assert (result["id"], len(result["files"])) == (draft, 2)
    rehearse(False)
    create.clear()
    create.upstream = {"send": send}  # the other tasks of the Dag
    assert create.run() != draft, "what was only rehearsed may be made again"


def test_a_second_delivery_is_rehearsed_and_one_that_was_sent_is_returned(make, time, sandbox, rehearse, files) -> None:
    task = make("files")
    first = task.run()
    rehearse(True)
    again = task_instance(RedeliverFilesOperator, time, transfer_id=first, files=files, security=None)
    assert rehearsed(again, sandbox)["subject"] == "Once more: Report"
    task.clear()
    assert task.run()["id"] == first["id"]


def test_the_hook_sends_nothing_either(sandbox, rehearse, make_draft) -> None:
    rehearse(True)
    draft = make_draft()
    with OutboundTransferHook() as hook, pytest.raises(Rehearsed):
        hook.send_transfer(draft)
    sandbox.assert_nothing_sent()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_the_send_is_in_the_air_names_the_transfer(make, sandbox, capfd, interrupt) -> None:
    def stop() -> None:
        raise interrupt

    with after(SEND, stop), pytest.raises(interrupt) as interrupted:
        make("files").run()
    (sent,) = {row["transfer_id"] for row in sandbox.ledger()}
    assert re.search(rf"{sent}.*\bsent\b", capfd.readouterr().out)
    assert (sent in str(interrupted.value)) is (interrupt is KeyboardInterrupt), "an exit code is no text"
