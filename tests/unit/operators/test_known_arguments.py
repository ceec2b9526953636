"""Arguments that can only be wrong fail when the Dag is parsed; what is rendered or mapped waits for the task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.decorators.deliver_files import _DeliverFilesDecoratedOperator
from outbound_transfer.operators.approval import ApproveTransferOperator
from outbound_transfer.operators.arguments import to_whole_number
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.recipients import RecipientsFromSql
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.store.errors import InvalidName
from outbound_transfer.transfers.event_feed_to_iceberg import EventFeedToIcebergOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from support.airflow_names import AirflowFailException

QUERY = {"sql_conn_id": "crm", "sql": "SELECT 1", "file_name": "a.csv"}
ANN = "a@example.com"
NEW = {"subject": "S", "recipients": ANN}
GIVEN: dict[type, dict[str, Any]] = {
    CreateTransferOperator: NEW,
    AttachFilesOperator: {"transfer_id": "t", "files": "f"},
    SendTransferOperator: {"transfer_id": "t"},
    DeliverFilesOperator: {**NEW, "files": "f"},
    RedeliverFilesOperator: {"transfer_id": "t", "files": "f", "security": None},
    SqlToOutboundTransferOperator: {**NEW, **QUERY},
    _DeliverFilesDecoratedOperator: {**NEW, "python_callable": list},
    TransferSensor: {"transfer_id": "t"},
    ApproveTransferOperator: {"transfer_id": "t"},
    EventFeedToSqlOperator: {"sql_conn_id": "c"},
    EventFeedToIcebergOperator: {"iceberg_conn_id": "c", "table": "lake.events"},
    TransfersToSqlOperator: {"sql_conn_id": "c"},
}
ERRORS = (AirflowFailException, InvalidDelivery, InvalidName)

XLS = {"sql": "SELECT 1", "file_name": "a.xls"}
WRONG = [
    (DeliverFilesOperator, {"on_expired": "succeed"}, "on_expired needs wait=True"),
    (DeliverFilesOperator, {"timeout": timedelta(days=1)}, "timeout needs wait=True"),
    (DeliverFilesOperator, {"wait": True, "poke_interval": "5m"}, "poke_interval must be a non-negative timedelta"),
    (DeliverFilesOperator, {"wait": True, "timeout": -1}, "timeout must be a non-negative timedelta or number"),
    (DeliverFilesOperator, {"slot_timeout": "1h"}, "slot_timeout must be a non-negative timedelta or number"),
    (SendTransferOperator, {"slot_timeout": "1h"}, "slot_timeout must be a non-negative timedelta or number"),
    (DeliverFilesOperator, {"security": "e-mail"}, "security must be one of none, email, .* not 'e-mail'"),
    (RedeliverFilesOperator, {"security": "e-mail"}, "security must be one of none"),
    (DeliverFilesOperator, {"delivery_key": ""}, "delivery_key must be a string of printable characters"),
    (AttachFilesOperator, {"transfer_id": ""}, "transfer_id must be a transfer's id"),
    (SendTransferOperator, {"transfer_id": None}, "transfer_id must be a transfer's id"),
    (DeliverFilesOperator, {"files": []}, "files is empty"),
    (AttachFilesOperator, {"files": ()}, "files is empty"),
    (AttachFilesOperator, {"max_parallel_uploads": 0}, "max_parallel_uploads must be a whole number of at least 1"),
    (SqlToOutboundTransferOperator, {"file_name": "a.xls"}, "the suffix of 'a.xls' is not one of"),
    (SqlToOutboundTransferOperator, {"file_format": "xls"}, "file_format must be one of csv, jsonl"),
    (SqlToOutboundTransferOperator, {"sql": None}, "give either sql and file_name, or queries"),
    (SqlToOutboundTransferOperator, {"sql": None, "file_name": None, "queries": [XLS]}, "the suffix of 'a.xls'"),
    (SqlToOutboundTransferOperator, {"on_empty": "ignore"}, "on_empty must be one of fail, skip, send"),
    (SqlToOutboundTransferOperator, {"csv_formulas": "drop"}, "csv_formulas must be one of escape, keep"),
    (SqlToOutboundTransferOperator, {"timezone": "Mars"}, "timezone 'Mars' is not a time zone"),
    (SqlToOutboundTransferOperator, {"max_rows": 0}, "max_rows must be a whole number of at least 1"),
    (CreateTransferOperator, {"subject": ""}, "subject must not be empty"),
    (CreateTransferOperator, {"recipients": [{"mail": "a@example.com"}]}, "has the field 'mail'"),
    (DeliverFilesOperator, {"message": "x" * 2_001}, "message has 2,001 characters"),
    (DeliverFilesOperator, {"security": "question"}, "needs security_question\n- security 'question' needs security_a"),
    (DeliverFilesOperator, {"security": "question", "security_answer": "{{ a }}"}, "needs security_question$"),
    (DeliverFilesOperator, {"security": "sms"}, "security 'sms' needs a phone number for a@example.com"),
    (AttachFilesOperator, {"archive": "a.tar"}, "archive must be the name of a ZIP file"),
    (AttachFilesOperator, {"checksums": 1}, "checksums must be the name of a file, such as SHA256SUMS, not 1"),
    (DeliverFilesOperator, {"files": ["f", {"path": "a", "nam": "b"}]}, "needs \"path\".*; not 'nam'"),
    (RedeliverFilesOperator, {"transfer_id": ""}, "transfer_id must be a transfer's id"),
    (TransferSensor, {"transfer_id": None}, "transfer_id must be a transfer's id"),
    (ApproveTransferOperator, {"transfer_id": 7}, "transfer_id must be a transfer's id"),
    (ApproveTransferOperator, {"response_timeout": "2d"}, "response_timeout must be a timedelta over 0"),
    (DeliverFilesOperator, {"subject": 12.5}, "subject must be a string, not float: quote it"),
    (EventFeedToSqlOperator, {"max_pages": 0}, "max_pages must be a whole number of at least 1, or None"),
    (EventFeedToSqlOperator, {"max_rejected": -1}, "max_rejected must be a whole number of at least 0, or None"),
    (EventFeedToSqlOperator, {"account": "x" * 251}, "an account's name has 1 to 250 characters, not 251"),
    (EventFeedToSqlOperator, {"table_prefix": "a\0"}, "contains a NUL character"),
    (EventFeedToSqlOperator, {"table_prefix": "x" * 1_000}, "is too long: at most 986 bytes"),
    (EventFeedToSqlOperator, {"table_prefix": None}, "table_prefix must be a string, not None"),
    (EventFeedToSqlOperator, {"schema": "x" * 1_001}, "is too long: at most 1000 bytes"),
    (EventFeedToSqlOperator, {"schema": "\ud800"}, "unpaired surrogate"),
    (TransfersToSqlOperator, {"account": "x" * 251}, "an account's name has 1 to 250 characters, not 251"),
    (TransfersToSqlOperator, {"table_prefix": 7}, "table_prefix must be a string, not 7"),
    (TransfersToSqlOperator, {"schema": "a\0"}, "contains a NUL character"),
    (EventFeedToIcebergOperator, {"table": "events"}, "'events' is not the name of an Iceberg table: write namespace"),
]


@pytest.mark.parametrize(("operator", "wrong", "message"), WRONG)
def test_an_argument_that_can_only_be_wrong_fails_when_the_dag_is_parsed(operator, wrong, message) -> None:
    with pytest.raises(ERRORS, match=message):
        operator(task_id="task", **{**GIVEN[operator], **wrong})


@pytest.mark.parametrize(("operator", "wrong"), [(kind, wrong) for kind, wrong, text in WRONG if "wait=" not in text])
def test_a_mapped_task_is_checked_when_it_runs(operator, wrong) -> None:
    """There, an error is the task's, with the number of its tries and its callbacks."""
    operator(task_id="task", _airflow_from_mapped=True, **{**GIVEN[operator], **wrong})


def test_a_query_for_recipients_says_what_it_can_do_without_any() -> None:
    with pytest.raises(ValueError, match="on_empty must be one of fail, skip, not 'send'"):
        RecipientsFromSql(sql="SELECT 1", conn_id="c", on_empty="send")


CSV = {"sql": "S", "file_name": "a.csv"}
RIGHT = [
    (DeliverFilesOperator, {"wait": True, "on_expired": "succeed", "poke_interval": timedelta(minutes=5)}),
    (DeliverFilesOperator, {"default_args": {"poke_interval": 30, "timeout": 60}}),  # of the Dag's sensors
    (SqlToOutboundTransferOperator, {"file_name": None, "queries": [CSV], "default_args": {"sql": "SELECT 1"}}),
    (ApproveTransferOperator, {"default_args": {"defaults": "Yes", "multiple": True, "options": ["Yes"]}}),
    (DeliverFilesOperator, {"wait": True, "poke_interval": "{{ params.seconds }}", "timeout": "300"}),
    (DeliverFilesOperator, {"security": "{{ params.security }}"}),
    (DeliverFilesOperator, {"delivery_key": "k"}),
    (DeliverFilesOperator, {"files": lambda context, jinja_env: []}),  # Airflow renders such
    (DeliverFilesOperator, {"files": ["{{ params.file }}"]}),
    (SqlToOutboundTransferOperator, {"file_name": "{{ params.name }}"}),
    (SqlToOutboundTransferOperator, {"file_name": "a.txt", "file_format": "csv"}),
    (SqlToOutboundTransferOperator, {"sql": None, "file_name": None, "queries": "{{ params.queries }}"}),
    (SqlToOutboundTransferOperator, {"files": []}),
    (_DeliverFilesDecoratedOperator, {"files": None}),
    (_DeliverFilesDecoratedOperator, {"subject": None, "recipients": None, "security": "question"}),
    (RedeliverFilesOperator, {"subject": None, "recipients": None, "security": "sms"}),
    (DeliverFilesOperator, {"subject": "{{ s }}", "recipients": ["a@example.com", "{{ b }}"]}),
    (DeliverFilesOperator, {"recipients": "{{ people }}", "security": "sms"}),
    (DeliverFilesOperator, {"recipients": RecipientsFromSql(sql="SELECT 1", conn_id="c"), "security": "sms"}),
    (DeliverFilesOperator, {"security": "question", "security_question": "{{ q }}", "security_answer": "{{ a }}"}),
    (DeliverFilesOperator, {"security": "email", "security_answer": "{{ a }}"}),  # which may render to None
    (DeliverFilesOperator, {"security": "{{ s }}", "security_answer": "a"}),
    (DeliverFilesOperator, {"archive": "{{ a }}"}),
    (DeliverFilesOperator, {"files": {"path": "a", "name": "{{ n }}"}}),
    (DeliverFilesOperator, {"files": {"name": "a", "content": b""}}),
    (TransferSensor, {"transfer_id": "{{ id }}"}),
    (TransferSensor, {"transfer_id": {"id": "t"}}),
    (EventFeedToSqlOperator, {"max_pages": "{{ n }}", "max_rejected": None}),
    (EventFeedToSqlOperator, {"table_prefix": "", "schema": "", "account": ""}),
    (EventFeedToSqlOperator, {"table_prefix": "{{ p }}" + "x" * 1_000, "schema": "{{ s }}\0"}),
    (TransfersToSqlOperator, {"table_prefix": "{{ p }}\0", "schema": "{{ s }}\0", "account": "{{ a }}" + "x" * 250}),
    (EventFeedToIcebergOperator, {"table": "{{ t }}", "account": "{{ a }}" + "x" * 250}),
]


@pytest.mark.parametrize(("operator", "right"), RIGHT)
def test_an_argument_that_may_be_right_is_left_to_the_task(operator, right) -> None:
    operator(task_id="task", **{**GIVEN[operator], **right})


def test_the_result_of_a_task_is_left_to_the_task() -> None:
    with DAG("dag", schedule=None):
        create = CreateTransferOperator(task_id="create", **NEW)
        results = dict.fromkeys(("files", "security", "recipients"), create.output)
        DeliverFilesOperator(task_id="deliver", subject="S", **results)


def test_another_value_is_refused_by_name() -> None:
    for value in (0, -1, "0", "", "None", None, "four", "4.5", float("nan"), float("inf"), [4]):
        with pytest.raises(InvalidDelivery, match="max_parallel_uploads must be a whole number of at least 1, not "):
            to_whole_number("max_parallel_uploads", value)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (DeliverFilesOperator, {"subject": "S", "recipients": ..., "files": ...}),
        (SqlToOutboundTransferOperator, {"subject": "S", "recipients": ..., "files": ..., **QUERY}),
        (RedeliverFilesOperator, {"transfer_id": "t", "security": None, "recipients": ..., "files": ...}),
        (CreateTransferOperator, {"subject": "S", "recipients": ...}),
        (AttachFilesOperator, {"transfer_id": "t", "files": ...}),
    ],
)  # fmt: skip
def test_an_iterator_serves_every_attempt(operator: type, arguments: dict[str, Any]) -> None:
    given = {name: iter([ANN, "{{ b }}"]) if value is ... else value for name, value in arguments.items()}
    task = operator(task_id="task", **given)
    assert all(getattr(task, name) == [ANN, "{{ b }}"] for name, value in arguments.items() if value is ...)


DELIVERY: dict[str, Any] = {
    "subject": "S", "recipients": ANN, "files": "f", "message": "M", "security": "email", "archive": "a.zip",
    "checksums": "SHA256SUMS", "on_empty": "skip", "max_parallel_uploads": 2, "delivery_key": "k",
    "slot_timeout": timedelta(minutes=1), "wait": True, "poke_interval": timedelta(minutes=2),
    "timeout": timedelta(days=1), "on_expired": "skip", "on_canceled": "succeed", "accept_partial": True,
    "outbound_transfer_conn_id": "c", "deferrable": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "more"), [(RedeliverFilesOperator, {"transfer_id": "t"}), (SqlToOutboundTransferOperator, QUERY)]
)
def test_every_argument_of_a_delivery_is_passed_on(operator: type, more: dict[str, Any]) -> None:
    task = operator(task_id="task", retries=7, **DELIVERY, **more)
    expected = {**DELIVERY, **more, "retries": 7}
    assert {name: getattr(task, name) for name in expected} == expected
