"""Dags of ``dags/`` in a real Airflow. Those of approvals, reminders and days are in ``tests/e2e/airflow``."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext

import pytest

from support import transfers
from support.repository import REPOSITORY

DELIVER_FILES = (REPOSITORY / "dags/deliver_files.py").read_text()


def test_deliver_files_sends_what_is_given_once(
    run_dag, connection, sandbox, recipients_pick_up, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("OUTBOUND_TRANSFER_POKE_INTERVAL", "1")
    (tmp_path / "a.txt").write_text("for ann")
    (tmp_path / "b.txt").write_text("for bob")
    deliveries = [
        {"files": [str(tmp_path / "a.txt")], "subject": "For Ann", "recipients": ["ann@example.com"]},
        {"files": [str(tmp_path / "*.txt")], "subject": "123", "recipients": [{"email": "bob@example.com"}]},
    ]
    run = run_dag(DELIVER_FILES, conf={"deliveries": deliveries})
    assert run.state == "success"
    assert {run.states()[f"delivery.wait_for_pickup[{index}]"] for index in (0, 1)} == {"success"}
    final = [run.xcom("delivery.wait_for_pickup", map_index=index) for index in (0, 1)]
    assert [(one["subject"], one["status"]) for one in final] == [("For Ann", "complete"), ("123", "complete")]
    assert [row["kind"] for row in sandbox.ledger()].count("billed") == 2

    # As the form has them: a line with a blank at its end, and one without anything.
    form = {
        "files": [f"{tmp_path}/*.txt ", ""],
        "recipients": ["ann@example.com", " bob@example.com"],
        "subject": "Report",
        "message": "Two lines\nof text",
        "security": "email",
    }
    assert run_dag(DELIVER_FILES, conf=form).state == "success"
    transfer_id = sandbox.sent()[-1]
    files = {"a.txt": b"for ann", "b.txt": b"for bob"}
    sandbox.assert_delivered(transfer_id, files, "ann@example.com", "bob@example.com")
    transfer = sandbox.transfer(transfer_id)
    assert (transfer["subject"], transfer["message"]) == ("Report", "Two lines\nof text")


def test_redeliver_files_delivers_to_those_who_are_left(run_dag, connection, sandbox, tmp_path) -> None:
    (tmp_path / "report.csv").write_text("a,b\n")
    (first,) = transfers.send(sandbox, 1, transfers.ANN, transfers.BOB, subject="Quarter")
    sandbox.pickup(first, transfers.ANN)
    conf = {"transfer_id": first, "files": [str(tmp_path / "*.csv")]}
    source = (REPOSITORY / "dags/redeliver_files.py").read_text()
    run = run_dag(source, conf=conf)
    assert run.states() == {"deliver": "success", "discard_draft": "success"}
    second = run.xcom("deliver")
    assert (second["subject"], second["not_picked_up"]) == ("Once more: Quarter", [transfers.BOB])
    sandbox.pickup(first, transfers.BOB)
    assert run_dag(source, conf=conf).states()["deliver"] == "skipped"
    assert sandbox.sent() == [first, second["id"]]


ONE = {"files": ["/a"], "subject": "S", "recipients": ["ann@example.com"]}


@pytest.mark.parametrize(
    ("conf", "is_valid"),
    [
        ({"deliveries": [ONE]}, True),
        (ONE, True),
        (ONE | {"security": "email_code"}, True),
        (ONE | {"security": "sms"}, False),
        (ONE | {"security": ""}, False),
        ({"deliveries": [ONE | {"security": ""}]}, False),
        ({"deliveries": [ONE | {"security": None}]}, True),
        (ONE | {"message": "x" * 2001}, False),
        (ONE | {"recipients": ["a@example.com"] * 251}, False),
        ({"deliveries": [ONE | {"colour": "blue"}]}, False),
    ],
)
def test_the_form_of_deliver_files_takes_one_or_many(tmp_path, airflow_database, conf: dict, is_valid: bool) -> None:
    from airflow.exceptions import ParamValidationError

    from support.airflow_names import DagBag

    (tmp_path / "under_test.py").write_text(DELIVER_FILES)
    (dag,) = DagBag(str(tmp_path)).dags.values()
    with nullcontext() if is_valid else pytest.raises(ParamValidationError):
        dag.params.update(conf)  # validates each
        assert dag.params.validate() == dag.params.dump() | conf


@pytest.mark.parametrize("conf", [{}, ONE | {"deliveries": [ONE]}], ids=["neither", "both"])
def test_deliver_files_sends_nothing_if_its_form_is_empty_or_says_two_things(
    run_dag, connection, sandbox, conf
) -> None:
    run = run_dag(DELIVER_FILES, conf=conf)
    assert run.states()["deliveries"] == "failed"
    sandbox.assert_nothing_sent()


APPROVED = (REPOSITORY / "dags/deliver_with_approval.py").read_text()


def test_a_sigterm_ends_the_wait_for_an_answer(run_dag, connection, sandbox, tmp_path, monkeypatch) -> None:
    """Of ``dag.test()``: Airflow's own handler lets a task go on."""
    (tmp_path / "a.pdf").write_text("for both")
    signals, before, sleep_on = list[int](), signal.getsignal(signal.SIGTERM), time.sleep

    def sleep(seconds: float) -> None:
        if seconds == 0.2:
            signals.append(signal.SIGTERM)
            assert len(signals) == 1, "the wait goes on"
            os.kill(os.getpid(), signal.SIGTERM)
        sleep_on(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    try:
        run = run_dag(APPROVED.replace("retries=3", "retries=0"), conf={"files": str(tmp_path / "*.pdf")})
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (run.states()["approve"], len(signals)) == ("failed", 1)
    sandbox.assert_nothing_sent()


def test_a_wait_for_an_answer_ends_without_one(run_dag, connection, sandbox, tmp_path) -> None:
    (tmp_path / "a.pdf").write_text("for both")
    soon = APPROVED.replace("timedelta(days=3)", "timedelta(seconds=1)").replace("retries=3", "retries=0")
    run = run_dag(soon, conf={"files": str(tmp_path / "*.pdf")})
    assert {name: run.states()[name] for name in ("approve", "send", "discard")} == {
        "approve": "failed", "send": "upstream_failed", "discard": "success",
    }  # fmt: skip
    sandbox.assert_nothing_sent()
