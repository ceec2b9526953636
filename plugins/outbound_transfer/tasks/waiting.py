"""Waiting for a transfer, shared by the sensor in each of its modes and by ``DeliverFilesOperator``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from airflow.sdk import BaseOperator

from outbound_transfer.airflow_compat.names import (
    NEVER_EXPIRE,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferralTimeout,
    conf,
    timezone,
)
from outbound_transfer.airflow_compat.run_state import read_clears
from outbound_transfer.client.errors import CallError
from outbound_transfer.client.identity import identity_of
from outbound_transfer.client.ids import resolve_transfer_id
from outbound_transfer.client.models import Transfer
from outbound_transfer.client.outcomes import Outcome, OutcomeRules, describe, skip_reason, status_hint, wait_outcome
from outbound_transfer.delivery.notes import state_store
from outbound_transfer.delivery.shown import show_seen
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.observability import metrics
from outbound_transfer.tasks.errors import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from outbound_transfer.delivery.notes import StateStore

#: The timeout of a wait without one: the service expires transfers and removes drafts long before.
NO_TIMEOUT: Final = timedelta(days=3_650)

#: ``[sensors] default_timeout`` as Airflow ships it: shorter than transfers live.
_SHIPPED_SENSOR_TIMEOUT: Final = timedelta(days=7)

OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)

_EVENTS: Final = ("finished", "timeout", "error")

#: Where a task stores the deadline of its wait.
DEADLINE_STATE_KEY: Final = "outbound_transfer_deadline"

TRIGGER_FAILURES_STATE_KEY: Final = "outbound_transfer_trigger_failures"

#: Failures of the task's trigger, which are Airflow's and not the service's, that start a new trigger: with one more,
#: each within :data:`TRIGGER_FAILURE_WINDOW` of the one before, the task fails.
MAX_TRIGGER_FAILURES: Final = 3

TRIGGER_FAILURE_WINDOW: Final = timedelta(hours=1)


def to_seconds(duration: float | str | timedelta, argument: str = "a duration") -> float:
    """Convert a duration to seconds. A rendered template gives it as text.

    :param argument: its name in the error.
    :raises AirflowFailException: the duration is not a number, negative, NaN or infinite.
    """
    try:
        length = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    except (TypeError, ValueError, OverflowError):
        length = inf
    if not 0 <= length < inf:
        raise AirflowFailException(f"{argument} must be a timedelta or a number of seconds, not {duration!r:.100}")
    return length


def default_sensor_timeout() -> float:
    """Return the timeout of a sensor without one, in seconds: ``[sensors] default_timeout`` where it was changed."""
    shipped = _SHIPPED_SENSOR_TIMEOUT.total_seconds()
    configured = conf.getfloat("sensors", "default_timeout", fallback=shipped)
    return NO_TIMEOUT.total_seconds() if configured == shipped else configured


def checked_transfer_id(transfer_id: Any) -> str:
    """Return the transfer's id, as :func:`~outbound_transfer.client.ids.resolve_transfer_id` does.

    :raises AirflowFailException: it is not a transfer's id. Raised before the task starts to wait.
    """
    with fail_without_retry():
        return resolve_transfer_id(transfer_id)


def transfer_from_event(event: Any) -> Transfer | None:
    """Return the transfer as the trigger last saw it, or None if the service could not be reached.

    :raises ValueError: the event is not one of this provider's triggers.
    """
    if not isinstance(event, Mapping) or event.get("status") not in _EVENTS:
        raise ValueError("The trigger's event is not one of this provider's")
    transfer: Transfer | None = msgspec.convert(event.get("transfer"), Transfer | None)
    return transfer


class DeferrableWaitMixin(BaseOperator):
    """An operator or sensor that waits for a transfer, here or in the triggerer.

    It also has ``outbound_transfer_conn_id``, ``poke_interval`` and ``timeout`` (None: until the transfer finishes).

    :param on_expired: the task's outcome if the transfer expired before all recipients picked it up: ``fail``,
        ``succeed`` or ``skip``.
    :param on_canceled: the same for a transfer that was canceled in the web application.
    :param accept_partial: succeed as soon as one recipient picked the transfer up.
    """

    outbound_transfer_conn_id: str
    poke_interval: Any
    timeout: Any

    #: The transfer as it was last read, here or by the trigger.
    _last_read: Transfer | None = None

    #: The last line logged about the transfer: a poll that shows the same is not logged again.
    _last_logged: str = ""

    def __init__(
        self,
        *,
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.on_expired = on_expired
        self.on_canceled = on_canceled
        self.accept_partial = accept_partial
        self._check_outcomes()

    def _check_outcomes(self) -> None:
        """Validate the outcome arguments, except templates.

        :raises ValueError: naming the argument and its choices.
        """
        for argument in ("on_expired", "on_canceled"):
            outcome = getattr(self, argument)
            if outcome not in OUTCOMES and "{{" not in str(outcome):
                raise ValueError(f"{argument} must be one of {', '.join(OUTCOMES)}, not {outcome!r}")

    def outcome_rules(self) -> OutcomeRules:
        """Return what each terminal status means for the task.

        :raises ValueError: an argument, which may have been a template, is not an outcome.
        """
        self._check_outcomes()
        return OutcomeRules.from_arguments(self.on_expired, self.on_canceled, accept_partial=self.accept_partial)

    def validate_wait(self) -> None:
        """Validate the arguments of the wait, before anything is sent.

        :raises AirflowFailException, ValueError: naming the argument.
        """
        self.outcome_rules()
        to_seconds(self.poke_interval, "poke_interval")
        self.timeout_seconds()

    def timeout_seconds(self) -> float:
        """Return how long to wait at most.

        :raises AirflowFailException: ``timeout`` is not a duration.
        """
        return to_seconds(NO_TIMEOUT if self.timeout is None else self.timeout, "timeout")

    def get_or_create_deadline(self, context: Context) -> datetime:
        """Return when the wait times out: stored, so that it survives restarts and retries. A clear starts it anew.

        :raises AirflowFailException: ``timeout`` is not a duration, or ends after the year 9999.
        """
        with fail_without_retry():
            store = state_store(context)
        if stored := stored_since_clear(store, DEADLINE_STATE_KEY, context):
            return datetime.fromisoformat(stored["deadline"])
        try:
            deadline = timezone.utcnow() + timedelta(seconds=self.timeout_seconds())
        except OverflowError:
            raise AirflowFailException(f"timeout is too long: {self.timeout!r:.100}") from None
        store_until_clear(store, DEADLINE_STATE_KEY, context, deadline=deadline.isoformat())
        return deadline

    def poll_transfer(self, hook: OutboundTransferHook, transfer_id: str) -> Transfer | None:
        """Read the transfer once.

        :return: None after a transient error, which does not end the wait.
        :raises AirflowFailException: the key is refused, or does not see the transfer.
        """
        try:
            with fail_without_retry():
                return hook.get_transfer(transfer_id)
        except CallError as error:
            self.log.warning("Could not read transfer '%s'; the wait continues: %s", transfer_id, error)
            return None

    def is_over(self, transfer: Transfer) -> bool:
        """Apply the outcome rules to the transfer, and log its status if it changed. Count it if the wait finishes.

        :raises AirflowFailException: its status means failure.
        :raises AirflowSkipException: its status means to skip.
        """
        self._last_read = transfer
        if self._last_logged != describe(transfer):
            self._last_logged = describe(transfer)
            if hint := status_hint(transfer):
                self.log.warning("Transfer '%s' has status %r%s", transfer.id, transfer.status, hint)
            self.log.info("%s", describe(transfer))
            show_seen(self._account, self.outbound_transfer_conn_id, {transfer.id: transfer})
        outcome = self.outcome_rules().outcome_of(transfer)
        if outcome is None:
            return False
        metrics.DELIVERIES.emit(outcome=wait_outcome(transfer.status), conn_id=self.outbound_transfer_conn_id)
        match outcome:
            case Outcome.FAIL:
                raise AirflowFailException(f"Not delivered to all: {describe(transfer)}")
            case Outcome.SKIP:
                raise AirflowSkipException(skip_reason(transfer))
        return True

    def resolve_event(self, event: Any) -> Transfer:
        """Apply the outcome rules to the trigger's event, which is checked like any input from outside.

        :raises AirflowFailException, AirflowSkipException: see :meth:`is_over`; or the service refused.
        :raises AirflowSensorTimeout: the deadline passed.
        """
        self._last_read = transfer = transfer_from_event(event)
        if event["status"] == "error":
            raise AirflowFailException(str(event.get("message")))
        if event["status"] == "finished" and transfer and self.is_over(transfer):
            return transfer
        raise timed_out(transfer)

    @staticmethod
    def check_deadline(transfer: Transfer, deadline: datetime) -> None:
        """Fail if the deadline has passed.

        :raises AirflowSensorTimeout: it has.
        """
        if timezone.utcnow() >= deadline:
            raise timed_out(transfer)

    def defer_wait(
        self, transfer_id: str, deadline: datetime, *, sent: Transfer | None = None, end_from_trigger: bool = False
    ) -> NoReturn:
        """Wait in the triggerer, on the poll that all waiters of the connection share.

        :param sent: the transfer as this task has sent it; another one under its id does not end the wait well.
        :param end_from_trigger: finish a success or a skip without a worker.
        """
        from outbound_transfer.delivery.digests import digest
        from outbound_transfer.triggers.transfer import TransferTrigger

        trigger = TransferTrigger(
            transfer_id=transfer_id,
            outbound_transfer_conn_id=self.outbound_transfer_conn_id,
            poke_interval=to_seconds(self.poke_interval, "poke_interval"),
            deadline=deadline.isoformat(),
            end_from_trigger=end_from_trigger,
            push_xcom=self.do_xcom_push,
            identity=digest(identity_of(sent)) if sent else "",
            **self.outcome_rules().to_arguments(),
        )
        self.log.info(
            "Waiting for transfer %s until %s, without a worker slot; polled every %g s",
            transfer_id,
            deadline.isoformat(timespec="seconds") if self._has_timeout() else "it finishes",
            trigger.poke_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def _account(self) -> str:
        return OutboundTransferHook(self.outbound_transfer_conn_id).read_settings().account

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume as Airflow does, but continue the wait in a new trigger if the trigger failed."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            raise
        except TaskDeferralError:
            if _has_failed_too_often(context):
                raise
            self.log.warning("The trigger failed; the wait continues in a new one")
            self._was_deferred = True
            return self.execute(context)

    def _has_timeout(self) -> bool:
        return self.timeout_seconds() < NO_TIMEOUT.total_seconds()


def timed_out(transfer: Transfer | None) -> AirflowSensorTimeout:
    """Return the error of a wait whose timeout has passed; None if the transfer was never read."""
    status = describe(transfer) + status_hint(transfer) if transfer else "the service could not be reached"
    return AirflowSensorTimeout(f"Timed out waiting: {status}. Raise timeout to wait longer.")


def _has_failed_too_often(context: Context) -> bool:
    """Count a failure of the task's trigger, and return whether a new trigger would fail too.

    A wait may take weeks, in which triggerers come and go: a failure long after another counts as a first one. After
    the deadline each failure counts, however late.
    """
    store, now, count = state_store(context), timezone.utcnow(), 0
    if before := stored_since_clear(store, TRIGGER_FAILURES_STATE_KEY, context):
        waiting = stored_since_clear(store, DEADLINE_STATE_KEY, context)
        is_late = bool(waiting) and now >= datetime.fromisoformat(waiting["deadline"])
        if is_late or now - datetime.fromisoformat(before["at"]) < TRIGGER_FAILURE_WINDOW:
            count = before["count"]
    store_until_clear(store, TRIGGER_FAILURES_STATE_KEY, context, count=count + 1, at=now.isoformat())
    return bool(count >= MAX_TRIGGER_FAILURES)


def stored_since_clear(store: StateStore, key: str, context: Context) -> dict[str, Any]:
    """Return what this task has stored since it was last cleared; empty if it has not."""
    stored: Any = store.get(key, default=None)
    is_current = isinstance(stored, dict) and stored.get("clear_counters") == list(read_clears(context))
    return stored if is_current else {}


def store_until_clear(store: StateStore, key: str, context: Context, **values: JsonValue) -> None:
    """Store what a task knows, until it is cleared."""
    store.set(key, {**values, "clear_counters": list(read_clears(context))}, retention=NEVER_EXPIRE)
