"""Deliver files to recipients: one transfer by the fields of the form, or one for each entry of ``deliveries``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task, task_group

from outbound_transfer.operators.draft import DiscardTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

#: Seconds between two polls while a transfer waits for pickup.
POKE_INTERVAL = float(os.environ.get("OUTBOUND_TRANSFER_POKE_INTERVAL", "60"))

RECIPIENT = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "required": ["email"],
            "properties": {
                "email": {"type": "string", "minLength": 1},
                "name": {"type": "string"},
                "phone": {"type": "string", "description": "Needed with security sms."},
            },
            "additionalProperties": False,
        },
    ]
}

FILE = {
    "oneOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "required": ["path"],
            "properties": {"path": {"type": "string", "minLength": 1}, "name": {"type": "string", "minLength": 1}},
            "additionalProperties": False,
        },
    ]
}

DELIVERY = {
    "type": "object",
    "required": ["files", "subject", "recipients"],
    "properties": {
        "files": {"type": "array", "minItems": 1, "items": FILE},
        "subject": {"type": "string", "minLength": 1},
        "message": {"type": ["string", "null"], "maxLength": 2000},
        "recipients": {"type": "array", "minItems": 1, "maxItems": 250, "items": RECIPIENT},
        "security": {"enum": [None, "none", "email", "email_code", "question", "sms", "login"]},
        "security_question": {"type": ["string", "null"]},
        "security_answer_variable": {
            "type": ["string", "null"],
            "description": "The name of the Airflow Variable that holds the answer, so that no run shows it.",
        },
    },
    "additionalProperties": False,
}

#: The choice of the form that leaves the option to the account.
DEFAULT_SECURITY = "default"


def requested_deliveries(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a run is to deliver: the entries of ``deliveries``, or the one delivery of the form's fields.

    :raises ValueError: there is neither, or both.
    """
    lines = {name: [line.strip() for line in params[name] or () if line.strip()] for name in ("files", "recipients")}
    texts = {name: params[name] for name in ("subject", "message")}
    is_filled = any(lines.values()) or any(texts.values())
    if is_filled == bool(params["deliveries"]):
        raise ValueError("Fill in the fields of one delivery, or Deliveries: one of the two.")
    security = None if params["security"] == DEFAULT_SECURITY else params["security"]
    return [{**lines, **texts, "security": security}] if is_filled else params["deliveries"]


def delivery_field(field: str) -> Any:
    """Return a template field that reads from the mapped task's own delivery.

    It reads the run's parameters at run time, so that no phone number passes through an XCom.
    """

    def render(context: Any, jinja_env: Any) -> Any:  # noqa: ARG001  # Airflow passes it
        return requested_deliveries(context["params"])[context["ti"].map_index].get(field)

    return render


def security_answer(context: Any, jinja_env: Any) -> str | None:
    variable = delivery_field("security_answer_variable")(context, jinja_env)
    return context["var"]["value"].get(variable) if variable else None


@dag(
    schedule=None,
    catchup=False,
    tags=["outbound transfer"],
    doc_md=__doc__,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30)},
    params={
        "files": Param(
            [],
            title="Files",
            description="One a line: a path, a URI such as s3://…, or a pattern such as /data/*.pdf.",
            type="array",
        ),
        "recipients": Param([], title="Recipients", description="One address a line.", type="array", maxItems=250),
        "subject": Param(None, title="Subject", type=["string", "null"]),
        "message": Param(None, title="Message", type=["string", "null"], format="multiline", maxLength=2000),
        "security": Param(
            DEFAULT_SECURITY,
            title="Security",
            description="How a recipient proves who they are. A question and sms need more: see Deliveries.",
            type="string",
            enum=[DEFAULT_SECURITY, "none", "email", "email_code", "login"],
            values_display={DEFAULT_SECURITY: "the account's default", "email_code": "a code by email"},
        ),
        "deliveries": Param(
            [],
            title="Deliveries",
            section="Several deliveries",
            description_md=(
                "Instead of the fields above. One transfer each, with: **files** (paths, URIs such as `s3://…`, or "
                'globs; `{"path": …, "name": …}` renames one), **subject**, **recipients** (addresses, or '
                '`{"email": …, "name": …, "phone": …}`), and optionally **message**, **security** (`none`, `email`, '
                "`email_code`, `question`, `sms`, `login`), **security_question** and **security_answer_variable** "
                "(the name of the Airflow Variable that holds the answer)."
            ),
            type="array",
            items=DELIVERY,
        ),
    },
)
def deliver_files() -> None:
    @task(retries=0)
    def deliveries(params: dict[str, Any]) -> list[str]:
        """Return the subjects, which name the mapped deliveries in the UI."""
        return [delivery["subject"] or "" for delivery in requested_deliveries(params)]

    @task_group
    def delivery(subject: str) -> None:
        deliver = DeliverFilesOperator(
            task_id="deliver",
            files=delivery_field("files"),
            subject=subject,
            message=delivery_field("message"),
            recipients=delivery_field("recipients"),
            security=delivery_field("security"),
            security_question=delivery_field("security_question"),
            security_answer=security_answer,
            deferrable=True,
            map_index_template="{{ task.subject }}",
        )
        wait = TransferSensor(
            task_id="wait_for_pickup",
            transfer_id="{{ ti.xcom_pull(task_ids='delivery.deliver', key='transfer_id', map_indexes=ti.map_index) }}",
            deferrable=True,
            poke_interval=POKE_INTERVAL,
        )
        discard = DiscardTransferOperator(  # for a task whose process was killed; others remove their draft themselves
            task_id="discard_draft",
            transfer_id="{{ ti.xcom_pull(task_ids='delivery.deliver', key='transfer_id', map_indexes=ti.map_index) }}",
        )
        deliver >> wait
        deliver >> discard.as_teardown()

    delivery.expand(subject=deliveries())


deliver_files()
