"""Waiting for a transfer's end, the same for the sensor in each of its modes and for ``DeliverFilesOperator``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk import BaseOperator, timezone
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferralTimeout,
)

from outbound_transfer.clears import clears_of
from outbound_transfer.failures import failing_at_once
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.logs import Log

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from outbound_transfer.protocol.models import Transfer
    from outbound_transfer.protocol.outcomes import OutcomeRules

CHOICES = ("fail", "succeed", "skip")

#: Where a task keeps until when it waits.
STATE_KEY = "outbound_transfer_wait"

FAILURES_KEY = "outbound_transfer_trigger_failures"

#: Failures of a task's trigger, which are Airflow's and not the service's, before the task fails with them: so many,
#: each within :data:`IN_A_ROW` of the one before.
MOST_TRIGGER_FAILURES = 3

IN_A_ROW: Final = timedelta(hours=1)


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


def seconds(duration: float | str | timedelta, argument: str = "a duration") -> float:
    """A duration in seconds; a rendered template gives it as text.

    :raises AirflowFailException: it is none, naming the ``argument``: no number, negative, "not a number" or endless.
    """
    try:
        length = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    except (TypeError, ValueError, OverflowError):
        length = inf
    if not 0 <= length < inf:
        raise AirflowFailException(f"{argument} must be a timedelta or a number of seconds, not {duration!r:.100}")
    return length


def deadline(timeout: float | str | timedelta, context: Context) -> datetime:
    """The instant at which a wait is given up: absolute, so that it survives restarts and the task's retries.

    A clear of the task begins anew.

    :raises AirflowFailException: ``timeout`` is no duration, or ends after the year 9999.
    """
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # exported, but not in its type stub

    store = context["task_state_store"]
    clears: list[JsonValue] = list(clears_of(context))
    kept: Any = store.get(STATE_KEY, default=None)
    if isinstance(kept, dict) and kept.get("clears") == clears:
        return datetime.fromisoformat(kept["deadline"])
    try:
        instant = timezone.utcnow() + timedelta(seconds=seconds(timeout, "timeout"))
    except OverflowError:
        raise AirflowFailException(f"timeout is too long: {timeout!r:.100}") from None
    store.set(STATE_KEY, {"deadline": instant.isoformat(), "clears": clears}, retention=NEVER_EXPIRE)
    return instant


def check_deadline(transfer: Transfer, deadline: datetime) -> None:
    """:raises AirflowSensorTimeout: it has passed."""
    from outbound_transfer.protocol.outcomes import story

    if timezone.utcnow() >= deadline:
        raise AirflowSensorTimeout(f"Gave up waiting: {story(transfer)}. Raise timeout to wait longer.")


def named(transfer_id: Any) -> str:
    """The id of the transfer that a task was given, as of :func:`~outbound_transfer.protocol.ids.transfer_id_of`.

    :raises AirflowFailException: it is none; said before the task waits for what cannot be.
    """
    from outbound_transfer.protocol.ids import transfer_id_of

    with failing_at_once():
        return transfer_id_of(transfer_id)


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


def conclude(transfer: Transfer, rules: OutcomeRules, log: Log, *, told: str = "") -> dict[str, Any] | None:
    """The final transfer as a mapping, without its files, or None while the wait goes on.

    :param told: what the log says of it already: a look that shows nothing new is not worth a line.
    :raises AirflowFailException: its status means failure by the user's choice.
    :raises AirflowSkipException: its status means to skip.
    """
    from outbound_transfer.protocol.models import as_listed
    from outbound_transfer.protocol.outcomes import KNOWN_STATUSES, Outcome, story

    if story(transfer) != told:
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
    return as_listed(transfer)


def conclude_event(event: Any, rules: OutcomeRules, log: Log) -> dict[str, Any]:
    """End a deferred wait with the trigger's event, which is checked like any input from outside.

    :raises AirflowFailException, AirflowSkipException: as :func:`conclude`, and where the service refused.
    :raises AirflowSensorTimeout: the deadline passed.
    """
    from outbound_transfer.protocol.outcomes import story

    transfer = seen_of(event)
    if event["ending"] == "failed":
        raise AirflowFailException(str(event.get("message")))
    if event["ending"] == "ended" and transfer and (result := conclude(transfer, rules, log)) is not None:
        return result
    raise AirflowSensorTimeout(
        f"Gave up waiting: {story(transfer) if transfer else 'the service could not be asked'}. "
        "Raise timeout to wait longer."
    )


def seen_of(event: Any) -> Transfer | None:
    """The transfer as the trigger saw it last.

    :raises ValueError: the event is none of this provider's.
    """
    import msgspec

    from outbound_transfer.protocol.models import Transfer

    if not isinstance(event, Mapping) or event.get("ending") not in ("ended", "timed out", "failed"):
        raise ValueError("The trigger's event is not one of this provider's")
    seen: Transfer | None = msgspec.convert(event.get("transfer"), Transfer | None)
    return seen


class WaitsForEnd(BaseOperator):
    """The deferred part of a wait, for an operator with the arguments that :class:`TransferSensor` describes."""

    outbound_transfer_conn_id: str
    poke_interval: Any
    on_expired: str
    on_canceled: str
    accept_partial: bool
    finish_in_triggerer: bool
    _told: str = ""

    def conclude(self, transfer: Transfer) -> dict[str, Any] | None:
        """As the function of this name, which says each thing once."""
        from outbound_transfer.protocol.outcomes import story

        told, self._told = self._told, story(transfer)
        return conclude(transfer, self.rules(), self.log, told=told)

    def defer_wait(self, transfer_id: str, deadline: datetime) -> NoReturn:
        """Wait in the triggerer, on the poll that all waits on the connection share."""
        from outbound_transfer.triggers.transfer import TransferTrigger

        self.rules()  # a template may have rendered to a choice that is none
        trigger = TransferTrigger(
            transfer_id=transfer_id,
            outbound_transfer_conn_id=self.outbound_transfer_conn_id,
            poke_interval=seconds(self.poke_interval, "poke_interval"),
            deadline=deadline.isoformat(),
            on_expired=self.on_expired,
            on_canceled=self.on_canceled,
            accept_partial=self.accept_partial,
            finish=self.finish_in_triggerer and self._may_finish(),
            push=self.do_xcom_push,
        )
        self.log.info(
            "Waiting for the end of transfer %s until %s, without a worker slot; a look every %g s",
            transfer_id,
            deadline.isoformat(timespec="seconds"),
            trigger.poke_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """End with what the trigger saw."""
        from outbound_transfer.ledger.recording import recording

        with OutboundTransferHook(self.outbound_transfer_conn_id) as hook, recording(self, context, hook) as journal:
            if transfer := seen_of(event):
                journal.saw(transfer)
            return conclude_event(event, self.rules(), self.log)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As Airflow does; but a trigger that failed is no end of the wait."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            raise
        except TaskDeferralError:
            if _fails_again(context):
                raise
            self.log.warning("The trigger failed; the wait goes on in a new one")
            return self.execute(context)

    def check_wait(self) -> None:
        """Refuse what a wait could not be made of before anything is sent, rather than after it.

        :raises AirflowFailException, ValueError: naming the argument.
        """
        self.rules()
        for name in ("poke_interval", "timeout"):
            seconds(getattr(self, name), name)

    def rules(self) -> OutcomeRules:
        """What each final status means."""
        return rules(self.on_expired, self.on_canceled, accept_partial=self.accept_partial)

    def _may_finish(self) -> bool:
        """A task that ends in the triggerer emits no asset events, splits no outputs and is not called back for."""
        return not (
            self.outlets or self.multiple_outputs or self.has_on_success_callback or self.has_on_skipped_callback
        )


def _fails_again(context: Context) -> bool:
    """Note that the task's trigger has failed; whether it has too often in a row, so that a new one would too.

    A wait may take weeks, in which triggerers come and go: a failure long after another is a first one. Once the
    deadline has passed there is no time for that.
    """
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # exported, but not in its type stub

    store, now = context["task_state_store"], timezone.utcnow()
    clears: list[JsonValue] = list(clears_of(context))
    before: Any = store.get(FAILURES_KEY, default=None)
    waits: Any = store.get(STATE_KEY, default=None)
    count = 0
    if isinstance(before, dict) and before.get("clears") == clears:
        is_late = isinstance(waits, dict) and now >= datetime.fromisoformat(waits["deadline"])
        if is_late or now - datetime.fromisoformat(before["at"]) < IN_A_ROW:
            count = before["count"]
    store.set(FAILURES_KEY, {"count": count + 1, "at": now.isoformat(), "clears": clears}, retention=NEVER_EXPIRE)
    return bool(count >= MOST_TRIGGER_FAILURES)
