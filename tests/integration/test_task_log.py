"""What stands in the log of a task that fails in a real Airflow."""

from __future__ import annotations

import pytest

WRONG = {
    "a file": 'DeliverFilesOperator(task_id="task", files="/missing/a.csv", subject="S", recipients="ann@example.com")',
    "what is rendered": 'DeliverFilesOperator(task_id="task", files=CONTENT, subject="{{ none }}",'
    ' recipients="a@example.com")',
    "the service": 'DeliverFilesOperator(task_id="task", files=CONTENT, subject="S",'
    ' recipients=["a@example.com", "b@example.com"])',
    "a sensor": 'TransferSensor(task_id="task", transfer_id="tr_unknown")',
    "a query": 'SqlToOutboundTransferOperator(task_id="task", sql_conn_id="sql", sql="SELECT missing",'
    ' file_name="a.csv", subject="S", recipients="a@example.com")',
    "an ingestion": 'EventFeedToSqlOperator(task_id="task", sql_conn_id="outbound_transfer_default")',
}
SAYS = {
    "a file": "is not there",
    "what is rendered": "subject must not be empty",
    "the service": "recipient_limit_exceeded",
    "a sensor": "'tr_unknown'",
    "a query": "no such column: missing",
    "an ingestion": "is not a SQL connection",
}


@pytest.mark.parametrize("what", WRONG)
def test_an_error_stands_once_in_the_log(
    run_dag, connection, sandbox, what, caplog, capfd, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SQL", f'{{"conn_type": "sqlite", "host": "{tmp_path}/rows.db"}}')
    sandbox.patch_account(plan="free")
    run = run_dag(
        f"""
        from airflow.sdk import DAG
        from outbound_transfer.operators.transfer import DeliverFilesOperator
        from outbound_transfer.sensors.transfer import TransferSensor
        from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
        from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator

        CONTENT = {{"name": "a.csv", "content": "a,b"}}
        with DAG("failing", schedule=None):
            {WRONG[what]}
        """
    )

    assert run.state == "failed"
    printed = capfd.readouterr()
    logs = [text for text in (caplog.text, printed.out, printed.err) if SAYS[what] in text]
    assert [text.count(SAYS[what]) for text in logs] == [1], "\n\n".join(logs)
