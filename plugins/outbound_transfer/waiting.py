"""Waiting for a transfer's end, the same for the sensor in each of its modes and for ``DeliverFilesOperator``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from outbound_transfer.failures import failing_at_once
from outbound_transfer.logs import Log

if TYPE_CHECKING:
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.protocol.models import Transfer
    from outbound_transfer.protocol.outcomes import OutcomeRules
    from outbound_transfer.triggers.transfer import TransferTrigger

CHOICES = ("fail", "succeed", "skip")


def check_choices(**choices: str) -> None:
    """Refuse a choice that is none.

    :raises ValueError: naming the argument and what it may be.
    """
    for argument, choice in choices.items():
        if choice not in CHOICES and "{{" not in str(choice):
            raise ValueError(f"{argument} must be one of {', '.join(CHOICES)}, not {choice!r}")


def rules(on_expired: str, on_canceled: str, *, accept_partial: bool) -> OutcomeRules:
    """The user's choices, checked."""
    from outbound_transfer.protocol.outcomes import Outcome, OutcomeRules

    check_choices(on_expired=on_expired, on_canceled=on_canceled)
    return OutcomeRules(Outcome(on_expired), Outcome(on_canceled), accept_partial)


def seconds(duration: float | str | timedelta) -> float:
    """A duration in seconds; a rendered template gives it as text."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def deadline(timeout: float | str | timedelta) -> datetime:
    """The instant at which a wait that begins now is given up: absolute, so that it survives restarts."""
    return timezone.utcnow() + timedelta(seconds=seconds(timeout))


def check_deadline(transfer: Transfer, deadline: datetime) -> None:
    """:raises AirflowSensorTimeout: it has passed."""
    from outbound_transfer.protocol.outcomes import story

    if timezone.utcnow() >= deadline:
        raise AirflowSensorTimeout(f"Gave up waiting: {story(transfer)}. Raise timeout to wait longer.")


def look(hook: OutboundTransferHook, transfer_id: str, log: Log) -> Transfer | None:
    """One look at a transfer; None where it failed in a way that passes, which ends no wait.

    :raises AirflowFailException: the key is refused, or does not see the transfer.
    """
    from outbound_transfer.protocol.errors import CallError

    try:
        with failing_at_once():
            return hook.get_transfer(transfer_id)
    except CallError as error:
        log.warning("Cannot see transfer %s just now; the wait goes on: %s", transfer_id, error)
        return None


def conclude(transfer: Transfer, rules: OutcomeRules, log: Log) -> dict[str, Any] | None:
    """The final transfer as a mapping, or None while the wait goes on.

    :raises AirflowFailException: its status means failure by the user's choice.
    :raises AirflowSkipException: its status means to skip.
    """
    from outbound_transfer.protocol.models import as_json
    from outbound_transfer.protocol.outcomes import KNOWN_STATUSES, Outcome, story

    if transfer.status not in KNOWN_STATUSES:
        log.warning("Status %r is not one that service.md lists; the wait goes on", transfer.status)
    log.info("%s", story(transfer))
    match rules.of(transfer):
        case None:
            return None
        case Outcome.FAIL:
            raise AirflowFailException(f"Not delivered to all: {story(transfer)}")
        case Outcome.SKIP:
            raise AirflowSkipException(f"Skipped as asked for: {story(transfer)}")
    final: dict[str, Any] = as_json(transfer)
    return final


def trigger(
    transfer_id: str, conn_id: str, *, poke_interval: float | timedelta, deadline: datetime, accept_partial: bool
) -> TransferTrigger:
    """The trigger that takes the wait over."""
    from outbound_transfer.triggers.transfer import TransferTrigger

    return TransferTrigger(
        transfer_id=transfer_id,
        outbound_transfer_conn_id=conn_id,
        poke_interval=seconds(poke_interval),
        deadline=deadline.isoformat(),
        accept_partial=accept_partial,
    )


Ending = Literal["ended", "timed out", "failed"]


def conclude_event(event: Any, rules: OutcomeRules, log: Log) -> dict[str, Any]:
    """End a deferred wait with the trigger's event, which is checked like any input from outside.

    :raises AirflowFailException, AirflowSkipException: as :func:`conclude`, and where the service refused.
    :raises AirflowSensorTimeout: the deadline passed.
    """
    import msgspec

    from outbound_transfer.protocol.models import Transfer
    from outbound_transfer.protocol.outcomes import story

    if not isinstance(event, Mapping) or event.get("ending") not in ("ended", "timed out", "failed"):
        raise ValueError("The trigger's event is not one of this provider's")
    if event["ending"] == "failed":
        raise AirflowFailException(str(event.get("message")))
    transfer = msgspec.convert(event.get("transfer"), Transfer | None)
    if event["ending"] == "ended" and transfer and (result := conclude(transfer, rules, log)) is not None:
        return result
    raise AirflowSensorTimeout(
        f"Gave up waiting: {story(transfer) if transfer else 'the service could not be asked'}. "
        "Raise timeout to wait longer."
    )
