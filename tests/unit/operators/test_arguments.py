"""Numbers among the arguments of operators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.operators.arguments import to_whole_number
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator

ANN = "ann@example.com"


@pytest.mark.parametrize("value", [0, -1, "0", "", "None", None, "four", "4.5", float("nan"), float("inf"), [4]])
def test_another_value_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidDelivery, match="max_parallel_uploads must be a whole number from 1 on, not "):
        to_whole_number("max_parallel_uploads", value)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (DeliverFilesOperator, {"subject": "S", "recipients": ..., "files": ...}),
        (
            SqlToOutboundTransferOperator,
            {
                "subject": "S", "recipients": ..., "files": ..., "sql_conn_id": "crm", "sql": "SELECT 1",
                "file_name": "a.csv",
            },
        ),
        (RedeliverFilesOperator, {"transfer_id": "t", "security": None, "recipients": ..., "files": ...}),
        (CreateTransferOperator, {"subject": "S", "recipients": ...}),
        (AttachFilesOperator, {"transfer_id": "t", "files": ...}),
    ],
)  # fmt: skip
def test_an_iterator_serves_every_try(operator: type, arguments: dict[str, Any]) -> None:
    given = {name: iter([ANN, "{{ b }}"]) if value is ... else value for name, value in arguments.items()}
    task = operator(task_id="task", **given)
    assert {name: getattr(task, name) for name, value in arguments.items() if value is ...} == {
        name: [ANN, "{{ b }}"] for name, value in arguments.items() if value is ...
    }


GIVEN: dict[str, Any] = {
    "subject": "S", "recipients": ANN, "files": "f", "message": "M", "security": "email", "archive": "a.zip",
    "checksums": "SHA256SUMS", "on_empty": "skip", "max_parallel_uploads": 2, "delivery_key": "k",
    "slot_timeout": timedelta(minutes=1), "wait": True, "poke_interval": timedelta(minutes=2),
    "timeout": timedelta(days=1), "on_expired": "skip", "on_canceled": "succeed", "accept_partial": True,
    "outbound_transfer_conn_id": "c", "deferrable": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "more"),
    [
        (RedeliverFilesOperator, {"transfer_id": "t"}),
        (SqlToOutboundTransferOperator, {"sql_conn_id": "crm", "sql": "SELECT 1", "file_name": "a.csv"}),
    ],
)
def test_what_a_delivery_takes_is_passed_on(operator: type, more: dict[str, Any]) -> None:
    task = operator(task_id="task", retries=7, **GIVEN, **more)
    expected = {**GIVEN, **more, "retries": 7}
    assert {name: getattr(task, name) for name in expected} == expected
