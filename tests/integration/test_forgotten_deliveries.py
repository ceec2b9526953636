"""A delivery that somebody lets Airflow forget is sent again, and nothing else is."""

from __future__ import annotations

import json

import pytest

from outbound_transfer.cli.console import main
from outbound_transfer.exceptions import DraftInUse, WrongTransfer
from outbound_transfer.operators.draft import CreateTransferOperator, SendTransferOperator
from support import memory
from support.deliveries import DELIVERY
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance
from support.warehouses import sqlite_hook


def cleared(task: FakeTaskInstance) -> str:
    task.clear()
    return str(task.run()["id"])


def test_a_task_that_is_cleared_sends_again_what_was_forgotten_and_once(deliver, sandbox) -> None:
    task = deliver()
    first = task.run()["id"]
    assert cleared(task) == first
    assert memory.forget(task, first) == "task task of run run of dag"
    second = cleared(task)
    assert cleared(task) == second
    assert sandbox.sent() == [first, second]
    with pytest.raises(WrongTransfer, match="or it was forgotten before"):
        memory.forget(task, first)


@pytest.mark.parametrize("state", ["running", "queued", "scheduled", "deferred", "up_for_retry", "up_for_reschedule"])
def test_a_delivery_that_is_at_work_is_not_forgotten(deliver, sandbox, state: str) -> None:
    task = deliver()
    sent = task.run()["id"]
    with pytest.raises(DraftInUse, match="is at work"):
        memory.forget(task, sent, state)
    assert cleared(task) == sandbox.assert_sent_once()


def test_a_draft_needs_not_be_forgotten(task) -> None:
    create = task(CreateTransferOperator, **DELIVERY)
    with pytest.raises(WrongTransfer, match="Nothing is changed"):
        memory.forget(create, create.run())


def test_the_task_to_clear_is_the_one_that_made_the_draft(task, make_draft) -> None:
    send = task(SendTransferOperator, "send", transfer_id=make_draft())
    assert memory.forget(send, send.run()["id"]) == "task task of run run of dag"


def test_the_command_says_what_to_clear_and_the_page_who_did_it(
    airflow_database, deliver, sandbox, tmp_path, monkeypatch, capsys
) -> None:
    memory.keep_keys_in(monkeypatch, json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "d.db")}))
    task = deliver(delivery_key="k")
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


def test_the_dag_forgets(run_dag, airflow_database, deliver, sandbox, tmp_path, monkeypatch) -> None:
    memory.keep_keys_in(monkeypatch, json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "d.db")}))
    task = deliver(delivery_key="k")
    first = memory.kept_in_a_database(task).run()["id"]
    run = run_dag((REPOSITORY / "dags/forget_delivery.py").read_text(), conf={"transfer_id": first})
    assert run.state == "success"
    second = cleared(task)
    assert sandbox.sent() == [first, second]
