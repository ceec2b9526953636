"""A delivery that somebody lets Airflow forget is sent again, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outbound_transfer.cli.console import main
from outbound_transfer.exceptions import DraftChanged, DraftInUse, WrongTransfer
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.calls import SEND, ProcessCrashed, before, die, process
from support.deliveries import DELIVERY
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance, SimulatedClock, task_instance
from support.warehouses import sqlite_hook


@pytest.fixture
def files(tmp_path: Path) -> str:
    (tmp_path / "a.csv").write_bytes(b"a,b\n")
    return str(tmp_path / "a.csv")


@pytest.fixture
def task(connection: str, sandbox: Sandbox, files: str) -> FakeTaskInstance:
    return task_instance(DeliverFilesOperator, SimulatedClock(sandbox), files=files, **DELIVERY)


def cleared(task: FakeTaskInstance) -> str:
    task.clear()
    return str(task.run()["id"])


def test_a_task_that_is_cleared_sends_again_what_was_forgotten_and_once(task, sandbox) -> None:
    first = task.run()["id"]
    assert cleared(task) == first
    assert memory.forget(task, first) == "task task of run run of dag"
    second = cleared(task)
    assert cleared(task) == second
    assert sandbox.sent() == [first, second]
    with pytest.raises(WrongTransfer, match="or it was forgotten before"):
        memory.forget(task, first)


@pytest.mark.parametrize("state", ["running", "queued", "scheduled", "deferred", "up_for_retry", "up_for_reschedule"])
def test_a_delivery_that_is_at_work_is_not_forgotten(task, sandbox, state: str) -> None:
    sent = task.run()["id"]
    with pytest.raises(DraftInUse, match="is at work"):
        memory.forget(task, sent, state)
    assert cleared(task) == sandbox.assert_sent_once()


def test_a_draft_needs_not_be_forgotten(connection, sandbox) -> None:
    task = task_instance(CreateTransferOperator, SimulatedClock(sandbox), **DELIVERY)
    with pytest.raises(WrongTransfer, match="Nothing is changed"):
        memory.forget(task, task.run())


def test_no_task_sends_what_was_forgotten_in_doubt(connection, sandbox, files) -> None:
    time = SimulatedClock(sandbox)
    draft = task_instance(CreateTransferOperator, time, task_id="create", **DELIVERY).run()
    task_instance(AttachFilesOperator, time, task_id="attach", transfer_id=draft, files=files).run()
    send = task_instance(SendTransferOperator, time, task_id="send", transfer_id=draft)
    with before(SEND, die), pytest.raises(ProcessCrashed):
        send.run()
    process.is_dead = False
    memory.forget(send, draft)
    with pytest.raises(DraftChanged, match="Nothing is sent"):
        send.run()
    sandbox.assert_nothing_sent()
    assert task_instance(DiscardTransferOperator, time, task_id="discard", transfer_id=draft).run()


def test_the_task_to_clear_is_the_one_that_made_the_draft(connection, sandbox, files) -> None:
    time = SimulatedClock(sandbox)
    draft = task_instance(CreateTransferOperator, time, task_id="create", **DELIVERY).run()
    task_instance(AttachFilesOperator, time, task_id="attach", transfer_id=draft, files=files).run()
    send = task_instance(SendTransferOperator, time, task_id="send", transfer_id=draft)
    send.run()
    assert memory.forget(send, draft) == "task create of run run of dag"


def test_the_command_says_what_to_clear_and_the_page_who_did_it(
    airflow_database, connection, sandbox, files, tmp_path, monkeypatch, capsys
) -> None:
    memory.keep_keys_in(monkeypatch, json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "d.db")}))
    task = task_instance(DeliverFilesOperator, SimulatedClock(sandbox), files=files, delivery_key="k", **DELIVERY)
    first = memory.kept_in_a_database(task).run()["id"]
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with pytest.raises(SystemExit, match="Nothing was changed"):
        main(["deliveries", "forget", "--transfer-id", first])
    capsys.readouterr()
    main(["deliveries", "forget", "--transfer-id", first, "--yes"])
    assert capsys.readouterr().out == (
        f"Transfer {first} is forgotten. Clear the task task of run run of dag to send it again.\n"
    )
    second = cleared(task)
    assert sandbox.sent() == [first, second]
    shown = dict(
        sqlite_hook(tmp_path / "d.db").fetch(
            "SELECT transfer_id, status || ' ' || error FROM outbound_transfer_deliveries WHERE dag_id <> ''"
        )
    )
    assert shown.keys() == {first, second}
    assert shown[first].startswith("pending Forgotten by ")
    assert shown[second] == "pending "
    main(["privacy", "erase", "--email", "ann@example.com", "--yes"])
    with pytest.raises(SystemExit, match="WrongTransfer|No delivery of this Airflow"):
        main(["deliveries", "forget", "--transfer-id", "tr_unknown", "--yes"])


def test_the_dag_forgets(run_dag, airflow_database, connection, sandbox, files, tmp_path, monkeypatch) -> None:
    memory.keep_keys_in(monkeypatch, json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "d.db")}))
    task = task_instance(DeliverFilesOperator, SimulatedClock(sandbox), files=files, delivery_key="k", **DELIVERY)
    first = memory.kept_in_a_database(task).run()["id"]
    run = run_dag((REPOSITORY / "dags/forget_delivery.py").read_text(), conf={"transfer_id": first})
    assert run.state == "success"
    second = cleared(task)
    assert sandbox.sent() == [first, second]
