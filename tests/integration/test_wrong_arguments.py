"""Arguments that can only be wrong: the task fails without a retry and names them, before it calls the service."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.decorators.deliver_files import _DeliverFilesDecoratedOperator
from outbound_transfer.notifications.slack import TransferSlackNotifier
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.transfers.event_feed_to_object_storage import EventFeedToObjectStorageOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.tasks import FakeTaskInstance, SimulatedClock

FILE = {"name": "a.csv", "content": "a"}
NEW: dict[str, Any] = {"subject": "S", "recipients": "a@example.com"}
GIVEN: dict[type, dict[str, Any]] = {
    CreateTransferOperator: NEW,
    AttachFilesOperator: {"transfer_id": "t", "files": FILE},
    SendTransferOperator: {"transfer_id": "t"},
    DeliverFilesOperator: {**NEW, "files": FILE},
    RedeliverFilesOperator: {"transfer_id": "t", "files": FILE, "security": None},
    SqlToOutboundTransferOperator: {**NEW, "sql_conn_id": "c", "sql": "SELECT 1", "file_name": "a.csv"},
    _DeliverFilesDecoratedOperator: {**NEW, "python_callable": list},
    TransferSensor: {"transfer_id": "t"},
    EventFeedToSqlOperator: {"sql_conn_id": "c"},
    EventFeedToObjectStorageOperator: {"path": "/data/events"},
    TransfersToSqlOperator: {"sql_conn_id": "c"},
}

NOTIFIER, DAY = TransferSlackNotifier(), timedelta(days=1)
WAITING: list[tuple[type, dict[str, Any]]] = [(DeliverFilesOperator, {"wait": True}), (TransferSensor, {})]
WRONG_WAITS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"notify_after": wrong, "notifiers": NOTIFIER}, "notify_after must be one timedelta or several, of which none")
        for wrong in (None, (), timedelta(0), 86_400, "1d", [DAY, timedelta(0)], [DAY, 5])
    ),
    ({"notify_after": DAY}, "notifiers must be one BaseNotifier or several, with notify_after, not NoneType"),
    ({"notify_after": DAY, "notifiers": []}, "notifiers must be .* not none"),
    ({"notify_after": DAY, "notifiers": [NOTIFIER, "https://hooks.example/T"]}, "not TransferSlackNotifier, str$"),
    ({"notify_after": DAY, "notifiers": TransferSlackNotifier}, "notifiers must be"),
    ({"on_expired": "ignore"}, "on_expired is one of succeed, fail, skip, not 'ignore'"),
]

WRONG = [
    *((kind, {**wait, **wrong}, text) for kind, wait in WAITING for wrong, text in WRONG_WAITS),
    *(
        (DeliverFilesOperator, {"wait": True, argument: wrong}, f"{argument} must be a timedelta or a number")
        for argument in ("poke_interval", "timeout")
        for wrong in (float("nan"), float("inf"), -1, "5m", "")
    ),
    (DeliverFilesOperator, {"slot_timeout": "1h"}, "slot_timeout must be a timedelta or a number"),
    (SendTransferOperator, {"slot_timeout": "1h"}, "slot_timeout must be a timedelta or a number"),
    (DeliverFilesOperator, {"security": "e-mail"}, "security must be one of none, email, .* not 'e-mail'"),
    (DeliverFilesOperator, {"resend": True}, "resend must be the id of the transfer to send once more"),
    (CreateTransferOperator, {"resend": "true"}, "resend must be the id of the transfer .* not 'true'"),
    (DeliverFilesOperator, {"delivery_key": ""}, "delivery_key must be a text of printable characters"),
    (DeliverFilesOperator, {"receipt": "a.json"}, "receipt must be the URI or the absolute path of a file"),
    *(
        (kind, {"transfer_id": wrong}, "transfer_id must be the id of a transfer")
        for kind in (AttachFilesOperator, SendTransferOperator, RedeliverFilesOperator, TransferSensor)
        for wrong in ("", None)
    ),
    (DeliverFilesOperator, {"files": []}, "files is empty"),
    (_DeliverFilesDecoratedOperator, {}, "files is empty"),
    (AttachFilesOperator, {"max_parallel_uploads": 0}, "max_parallel_uploads must be a whole number from 1 on"),
    (AttachFilesOperator, {"archive": "a.tar"}, "archive is the name of a ZIP file"),
    (DeliverFilesOperator, {"files": {"path": "a", "nam": "b"}}, "needs \"path\".*; not 'nam'"),
    (DeliverFilesOperator, {"on_empty": "ignore"}, "on_empty is one of fail, skip"),
    (SqlToOutboundTransferOperator, {"file_name": "a.xls"}, "the suffix of 'a.xls' names no format"),
    (SqlToOutboundTransferOperator, {"file_format": "xls"}, "file_format is one of csv, jsonl"),
    (SqlToOutboundTransferOperator, {"sql": None}, "give either sql and file_name, or queries"),
    (SqlToOutboundTransferOperator, {"on_empty": "ignore"}, "on_empty is one of fail, skip, send"),
    (SqlToOutboundTransferOperator, {"csv_formulas": "drop"}, "csv_formulas is one of escape, keep"),
    (SqlToOutboundTransferOperator, {"timezone": "Mars"}, "timezone 'Mars' is not a time zone"),
    (SqlToOutboundTransferOperator, {"max_rows": 0}, "max_rows must be a whole number from 1 on"),
    (CreateTransferOperator, {"subject": ""}, "subject must not be empty"),
    (CreateTransferOperator, {"recipients": [{"mail": "a@example.com"}]}, "has the field 'mail'"),
    (DeliverFilesOperator, {"message": "x" * 2_001}, "message has 2,001 characters"),
    (DeliverFilesOperator, {"security": "question"}, "needs security_question\n- security 'question' needs security_a"),
    (DeliverFilesOperator, {"security": "sms"}, "security 'sms' needs the phone of a@example.com"),
    (EventFeedToSqlOperator, {"max_pages": 0}, "max_pages must be a whole number from 1 on, or None"),
    (EventFeedToSqlOperator, {"max_rejected": -1}, "max_rejected must be a whole number from 0 on, or None"),
    (EventFeedToSqlOperator, {"account": "x" * 251}, "an account's name has 1 to 250 characters, not 251"),
    (EventFeedToSqlOperator, {"table_prefix": "a\0"}, "contains a NUL character"),
    (EventFeedToSqlOperator, {"schema": "\ud800"}, "cannot be encoded in UTF-8"),
    (TransfersToSqlOperator, {"account": "x" * 251}, "an account's name has 1 to 250 characters, not 251"),
    (TransfersToSqlOperator, {"table_prefix": 7}, "table_prefix must be text, not 7"),
    (EventFeedToObjectStorageOperator, {"path": "data/events"}, "the path must be absolute, or begin with a scheme"),
    (EventFeedToObjectStorageOperator, {"path": "s3://bucket/a/../b"}, "the path must name a folder"),
    (EventFeedToObjectStorageOperator, {"path": "s3://bucket/a*"}, "the path has a character that loaders take for"),
]


@pytest.mark.parametrize(("operator", "wrong", "message"), WRONG)
def test_what_can_only_be_wrong_is_named_before_any_call(
    operator: type,
    wrong: dict[str, Any],
    message: str,
    connection: str,
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "c.db")})
    for conn_id in ("C", "STATES"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", database)
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID", "states")
    arguments = {**GIVEN[operator], **wrong}
    task = FakeTaskInstance(lambda: operator(task_id="task", **arguments), SimulatedClock(sandbox), retries=3)

    with pytest.raises(AirflowFailException, match=message):
        task.run()
    assert (task.try_number, sandbox.requests()) == (1, [])


@pytest.mark.parametrize(
    "ignored",
    [{"on_expired": "succeed"}, {"notifiers": [NOTIFIER], "notify_after": DAY}],
    ids=lambda given: next(iter(given)),
)
def test_what_has_no_effect_without_a_wait_is_an_import_error(ignored: dict[str, Any]) -> None:
    with pytest.raises(InvalidDelivery, match=r"needs wait=True"):
        DeliverFilesOperator(task_id="task", **GIVEN[DeliverFilesOperator], **ignored)


def test_the_arguments_of_a_dags_sensors_have_no_effect_on_its_deliveries() -> None:
    DeliverFilesOperator(task_id="task", **GIVEN[DeliverFilesOperator], poke_interval=30, timeout=60)
