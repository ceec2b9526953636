"""Deliveries that hold secrets, in each way that a delivery may go: well, refused, unclear, retried, waited for."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, chain

from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator

FILE = os.environ["CANARY_FILE"]


def recipients(context: Any, jinja_env: Any) -> Any:
    return json.loads(context["var"]["value"].get("canary_recipients"))


def malformed(context: Any, jinja_env: Any) -> Any:
    return json.loads(context["var"]["value"].get("canary_malformed"))


def without(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != name}


QUESTION: dict[str, Any] = {
    "files": FILE,
    "subject": "With a question",
    "recipients": ["ann@example.com"],
    "security": "question",
    "security_question": "Your customer number?",
    "security_answer": "{{ var.value.canary_answer }}",
}
SMS: dict[str, Any] = {"files": FILE, "subject": "With a code", "recipients": recipients, "security": "sms"}
PHONE = "{{ var.json.canary_recipients[0].phone }}"
WAIT: dict[str, Any] = {"wait": True, "poke_interval": 1}
#: Airflow may take a task for failed that is back from the triggerer before the scheduler knows of its deferral.
DEFERRED: dict[str, Any] = {"deferrable": True, "retries": 2}

with DAG("canary", schedule=None, catchup=False, default_args={"retry_delay": timedelta(0)}):
    deliveries = [
        DeliverFilesOperator(task_id="question", **QUESTION),
        DeliverFilesOperator(task_id="question_deferred", **QUESTION, **WAIT, **DEFERRED),
        DeliverFilesOperator(task_id="sms", **SMS, **WAIT),
        DeliverFilesOperator(task_id="sms_deferred", **SMS, **WAIT, **DEFERRED),
        DeliverFilesOperator.partial(task_id="mapped", **without("subject", SMS)).expand(subject=["One", "Another"]),
        DeliverFilesOperator(task_id="unclear", **QUESTION, deferrable=True, outbound_transfer_conn_id="unclear"),
        DeliverFilesOperator(task_id="unclear_sms", **SMS, outbound_transfer_conn_id="unclear_sms"),
        DeliverFilesOperator(task_id="refused", **QUESTION, outbound_transfer_conn_id="refused"),
        DeliverFilesOperator(task_id="refused_sms", **SMS, **WAIT, outbound_transfer_conn_id="refused"),
        DeliverFilesOperator(task_id="forbidden", **QUESTION, outbound_transfer_conn_id="forbidden"),
        DeliverFilesOperator(task_id="malformed", **SMS | {"recipients": malformed}),
        DeliverFilesOperator(
            task_id="retried",
            # Its own subject: after a change of its input, the like of another task would be asked about.
            **QUESTION
            | {"files": "{{ '/missing' if ti.try_number == 1 else '" + FILE + "' }}", "subject": "Report, tried again"},
            retries=1,
        ),
        DeliverFilesOperator(task_id="gone", **SMS | {"files": "/missing"}),
        DeliverFilesOperator(task_id="template", **SMS | {"recipients": "{{ var.value.canary_recipients }}"}),
        DeliverFilesOperator(task_id="template_json", **SMS | {"recipients": "{{ var.json.canary_recipients }}"}),
        DeliverFilesOperator(task_id="template_cut", **SMS | {"recipients": "{{ var.value.canary_recipients[:-2] }}"}),
        DeliverFilesOperator(
            task_id="template_fails",
            **SMS | {"recipients": [{"email": "ann@example.com", "phone": PHONE}, "{{ nothing.at.all }}"]},
        ),
        DeliverFilesOperator(task_id="quoted", **QUESTION, outbound_transfer_conn_id="mirror"),
        DeliverFilesOperator(task_id="quoted_sms", **SMS, outbound_transfer_conn_id="mirror"),
    ]
    DeliverFilesOperator(task_id="no_http", **QUESTION, outbound_transfer_conn_id="no_http")
    EventFeedToSqlOperator(task_id="feed_no_http", sql_conn_id="warehouse", outbound_transfer_conn_id="no_http")
    TransferSensor(
        task_id="wait_no_http",
        transfer_id="t",
        outbound_transfer_conn_id="no_http",
        poke_interval=1,
        timeout=15,
        deferrable=True,
    )

    create = CreateTransferOperator(task_id="create", **without("files", QUESTION))
    attach = AttachFilesOperator(task_id="attach", transfer_id=create.output, files=FILE)
    send = SendTransferOperator(task_id="send", transfer_id=create.output)
    wait = TransferSensor(task_id="wait", transfer_id=create.output, poke_interval=1, **DEFERRED)
    discard = DiscardTransferOperator(task_id="discard", transfer_id=create.output)
    chain(create, attach, send, wait, discard)

    events = EventFeedToSqlOperator(task_id="events", sql_conn_id="warehouse", **DEFERRED, trigger_rule="all_done")
    transfers = TransfersToSqlOperator(task_id="transfers", sql_conn_id="warehouse", trigger_rule="all_done")
    feed_refused = EventFeedToSqlOperator(
        task_id="feed_refused", sql_conn_id="warehouse", outbound_transfer_conn_id="refused", trigger_rule="all_done"
    )
    [*deliveries, discard] >> events >> transfers >> feed_refused
