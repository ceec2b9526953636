"""Each public class lists its arguments, typed and documented: what an editor completes and a type checker checks."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import BaseOperator, BaseSensorOperator

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.notifications.slack import TransferSlackNotifier
from outbound_transfer.notifications.smtp import TransferSmtpNotifier
from outbound_transfer.operators.approval import ApproveTransferOperator
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.task_arguments import SensorArguments, TaskArguments
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.transfers.event_feed_to_iceberg import EventFeedToIcebergOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from outbound_transfer.triggers.transfer import TransferTrigger

#: The arguments without which each class cannot be made.
REQUIRED: dict[type, set[str]] = {
    CreateTransferOperator: {"subject", "recipients"},
    AttachFilesOperator: {"transfer_id", "files"},
    SendTransferOperator: {"transfer_id"},
    ApproveTransferOperator: {"transfer_id"},
    DiscardTransferOperator: {"transfer_id"},
    DeliverFilesOperator: {"files", "subject", "recipients"},
    RedeliverFilesOperator: {"transfer_id", "files", "security"},
    SqlToOutboundTransferOperator: {"sql_conn_id", "subject", "recipients"},
    EventFeedToSqlOperator: {"sql_conn_id"},
    EventFeedToIcebergOperator: {"iceberg_conn_id", "table"},
    TransfersToSqlOperator: {"sql_conn_id"},
    TransferSensor: {"transfer_id"},
    TransferTrigger: {"transfer_id", "outbound_transfer_conn_id", "poke_interval", "deadline", "rules"},
    OutboundTransferHook: set(),
    TransferSlackNotifier: set(),
    TransferSmtpNotifier: {"to"},
}

DURATIONS = {"poke_interval", "timeout", "slot_timeout", "response_timeout", "keep_snapshots_for"}


def arguments_of(kind: type) -> dict[str, inspect.Parameter]:
    """The arguments of a class but those that Airflow's base class takes."""
    signature = inspect.signature(kind.__init__, eval_str=False)
    return {
        name: each
        for name, each in signature.parameters.items()
        if name != "self" and each.kind is not inspect.Parameter.VAR_KEYWORD
    }


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_a_class_lists_its_arguments(kind: type) -> None:
    arguments = arguments_of(kind)
    assert {name for name, each in arguments.items() if each.default is each.empty} == REQUIRED[kind]
    assert [name for name, each in arguments.items() if each.annotation in (each.empty, "Any")] == []
    if kind not in (TransferTrigger, OutboundTransferHook):  # Airflow makes these by position
        assert {each.kind for each in arguments.values()} <= {inspect.Parameter.KEYWORD_ONLY}


def own_arguments(kind: type) -> set[str]:
    """The arguments that the docstring of a class describes."""
    return set(re.findall(r":param (\w+):", f"{kind.__doc__}{kind.__init__.__doc__}"))  # type: ignore[misc]


def described_arguments(kind: type) -> set[str]:
    """Those, and what the classes describe to which it sends its reader."""
    named = set(re.findall(r":class:`\.(\w+)`", kind.__doc__ or ""))
    others = [each for each in REQUIRED if each.__name__ in named and each is not kind]
    return own_arguments(kind).union(*map(own_arguments, others), *map(described_arguments, kind.__mro__[1:2]))


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_a_class_documents_its_arguments(kind: type) -> None:
    assert REQUIRED[kind] <= own_arguments(kind)  # those that the built page shows as required
    assert own_arguments(kind) - {"client_options"} <= arguments_of(kind).keys()
    assert arguments_of(kind).keys() - described_arguments(kind) == set()


@pytest.mark.parametrize("kind", [each for each in REQUIRED if each is not TransferTrigger], ids=lambda k: k.__name__)
def test_a_duration_is_a_timedelta(kind: type) -> None:
    durations = {name: each for name, each in arguments_of(kind).items() if name in DURATIONS}
    assert {str(each.annotation) for each in durations.values()} <= {"timedelta", "timedelta | None"}
    assert all(isinstance(each.default, timedelta | None) for each in durations.values())


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_few_classes_of_ours_stand_above_a_class(kind: type) -> None:
    above = [each for each in kind.__mro__[1:] if each.__module__.startswith("outbound_transfer.")]
    assert len(above) <= 2, above


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (AttachFilesOperator, {"transfer_id": "t", "file": "a.csv"}),
        (DeliverFilesOperator, {"files": "a.csv", "subject": "S", "recipient": "ann@example.com"}),
        (TransferSensor, {"transfer_id": "t", "on_expird": "skip"}),
    ],
)
def test_a_misspelt_argument_is_a_type_error(kind: type, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        kind(task_id="task", **wrong)


def test_a_type_checker_knows_the_arguments_of_airflow() -> None:
    sensor = arguments_of(BaseSensorOperator).keys() - {"poke_interval", "timeout"}
    assert TaskArguments.__annotations__.keys() == arguments_of(BaseOperator).keys()
    assert SensorArguments.__annotations__.keys() == arguments_of(BaseOperator).keys() | sensor
