"""Operators and sensor as tasks of a real Airflow, against the sandbox over a real socket."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

THREE_STEPS = """
    from airflow.sdk import DAG
    from outbound_transfer.operators.draft import (
        AttachFilesOperator,
        CreateTransferOperator,
        DiscardTransferOperator,
        SendTransferOperator,
    )

    with DAG("three_steps", schedule=None):
        create = CreateTransferOperator(
            task_id="create", subject="Report {{{{ params.day }}}}", recipients=["ann@example.com", "bob@example.com"],
            params={{"day": "2026-01-31"}},
        )
        attach = AttachFilesOperator(task_id="attach", transfer_id=create.output, files={files!r})
        send = SendTransferOperator(task_id="send", transfer_id=create.output)
        discard = DiscardTransferOperator(task_id="discard", transfer_id=create.output)
        create >> attach >> send >> discard.as_teardown(setups=create)
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / 'Über "final" 報告.csv'
    file.write_bytes(b"a,b\n" * 100_000)
    return file


def test_three_steps_deliver_the_very_bytes(run_dag, connection, sandbox, report) -> None:
    run = run_dag(THREE_STEPS.format(files=[str(report)]))

    assert run.states() == dict.fromkeys(["create", "attach", "send", "discard"], "success")
    transfer = run.xcom("send")
    assert (transfer["status"], transfer["subject"]) == ("pending", "Report 2026-01-31")
    (file,) = run.xcom("attach")
    stored = sandbox.stored_file(transfer["id"], file["id"])
    assert stored["name"] == report.name
    assert stored["sha256"] == hashlib.sha256(report.read_bytes()).hexdigest()
    assert [row["kind"] for row in sandbox.ledger()].count("billed") == 1
    assert run.xcom("discard") is False


def test_a_draft_that_is_not_sent_is_discarded_by_the_teardown(run_dag, connection, sandbox, tmp_path) -> None:
    run = run_dag(THREE_STEPS.format(files=[str(tmp_path / "missing.csv")]))

    assert run.states() == {"create": "success", "attach": "failed", "send": "upstream_failed", "discard": "success"}
    assert run.xcom("discard") is True
    assert sandbox.ledger() == []


DELIVER_AND_WAIT = """
    from airflow.sdk import DAG, task
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.sensors.transfer import TransferSensor
    import httpx

    with DAG("deliver_and_wait", schedule=None):
        deliver = DeliverFilesOperator(
            task_id="deliver", subject="Report", recipients=["ann@example.com"], files={files!r},
        )

        @task
        def pick_up(transfer):
            path = "/_sandbox/transfers/" + transfer["id"] + "/pickup"
            httpx.post({base_url!r} + path, json={{"email": "ann@example.com"}}).raise_for_status()

        wait = TransferSensor(
            task_id="wait", transfer_id="{{{{ ti.xcom_pull('deliver')['id'] }}}}", poke_interval=1, {mode}
        )
        pick_up(deliver.output) >> wait
"""


@pytest.mark.parametrize("mode", ["mode='poke'", "mode='reschedule'", "deferrable=True"])
def test_the_sensor_finishes_equally_in_every_mode(run_dag, connection, sandbox, report, mode) -> None:
    source = DELIVER_AND_WAIT.format(files=str(report), base_url=sandbox.base_url, mode=mode)

    run = run_dag(source)

    assert run.state == "success"
    final = run.xcom("wait")
    assert final["status"] == "complete"
    assert final["recipients"][0]["picked_up_at"]


SECRETIVE = """
    from airflow.sdk import DAG
    from outbound_transfer.operators.transfer import DeliverFilesOperator

    with DAG("secretive", schedule=None):
        DeliverFilesOperator(
            task_id="question", subject="Report", files={files!r}, recipients=["ann@example.com"],
            security="question", security_question="Which colour?", security_answer="{{{{ var.value.colour }}}}",
        )
        DeliverFilesOperator(
            task_id="sms", subject="Report", files={files!r}, security="sms",
            recipients=[{{"email": "ann@example.com", "phone": "{{{{ var.value.telephone }}}}"}}],
        )
"""


def test_airflow_stores_no_secret(run_dag, connection, sandbox, report, monkeypatch, capfd) -> None:
    # Four letters: shorter than what Airflow's own masking would hide.
    secrets = {"colour": "puce", "telephone": "+44 7700 900987"}
    for name, value in secrets.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name.upper()}", value)

    run = run_dag(SECRETIVE.format(files=str(report)))

    assert run.states() == {"question": "success", "sms": "success"}
    kept = dump_of_database() + "".join(capfd.readouterr()) + logs_of_airflow()
    assert "Which colour?" in kept, "the dump holds the rendered fields"
    for secret in [*secrets.values(), sandbox.transfer_api_key, sandbox.event_api_key]:
        assert secret not in kept


def dump_of_database() -> str:
    address = os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(address)) as database:
        return "\n".join(database.iterdump())


def logs_of_airflow() -> str:
    files = Path(os.environ["AIRFLOW_HOME"], "logs").rglob("*.log")
    return "".join(file.read_text(errors="replace") for file in files)
