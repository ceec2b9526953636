"""Wait until a transfer is picked up, in this process or in the triggerer: for the sensor and for a delivery."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outbound_transfer.airflow_compat import names
from outbound_transfer.client.errors import CallError
from outbound_transfer.client.models import Transfer, TransferOutcome, describe, status_hint
from outbound_transfer.delivery.attempt import TaskTry
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.observability import metrics
from outbound_transfer.operators.arguments import to_seconds
from outbound_transfer.operators.errors import fail_without_retry
from outbound_transfer.waiting.wait import FAIL, SKIP, Rules, WaitEnd, skip_reason, wait_outcome

if TYPE_CHECKING:
    from airflow.sdk import Context

#: The timeout of a wait without one: the service expires transfers and removes drafts long before that.
NO_TIMEOUT: Final = timedelta(days=3_650)


class Pickup:
    """The wait of one task for the pickup of one transfer.

    :param task: object with ``poke_interval``, ``timeout`` (None: until the transfer finishes), ``on_expired``,
        ``on_canceled``, ``accept_partial`` and ``outbound_transfer_conn_id``.
    :ivar transfer: the transfer as last read, here or by the trigger; None before that.
    """

    def __init__(self, task: Any, transfer_id: str, context: Context) -> None:
        self._task, self._context, self.transfer_id = task, context, transfer_id
        self._rules = Rules(task.on_expired, task.on_canceled, bool(task.accept_partial))
        self._interval, longest = to_seconds("poke_interval", task.poke_interval), NO_TIMEOUT.total_seconds()
        self._timeout = longest if task.timeout is None else min(to_seconds("timeout", task.timeout), longest)
        self.transfer: Transfer | None = None
        self._told = ""

    def deadline(self) -> datetime:
        """Return when the wait times out. The time is stored, so that it survives a retry; a clear resets it."""
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import Row

        by = TaskTry.of(self._context)
        row, asked = Row.of_task(open_rows(), by.task), str(by.asked)
        stored, then = row.read()[1].wait
        if then == asked:
            return datetime.fromisoformat(stored)
        deadline = names.timezone.utcnow() + timedelta(seconds=self._timeout)
        row.change(lambda memory: msgspec.structs.replace(memory, wait=(deadline.isoformat(), asked)))
        return deadline

    def run(self, hook: OutboundTransferHook, transfer: Transfer) -> Transfer:
        """Wait for a transfer that was just read, or defer; return it as last read.

        :raises AirflowSensorTimeout: the deadline has passed.
        """
        deadline, self.transfer = self.deadline(), transfer
        if self._task.deferrable and self._rules.outcome_of(transfer) is None:
            self.defer()
        while not self.is_over(transfer):
            if (left := (deadline - names.timezone.utcnow()).total_seconds()) <= 0:
                raise timed_out(transfer)
            time.sleep(min(self._interval, left))
            transfer = self.poll(hook) or transfer
        return transfer

    def poll(self, hook: OutboundTransferHook) -> Transfer | None:
        """Read the transfer once; return None after a transient error, which does not end the wait."""
        try:
            with fail_without_retry():
                return hook.get_transfer(self.transfer_id)
        except (CallError, names.AirflowNotFoundException) as error:
            self._task.log.warning("Could not read transfer '%s'; the wait continues: %s", self.transfer_id, error)
            return None

    def is_over(self, transfer: Transfer) -> bool:
        """Apply the rules to a transfer that was read. A change is logged, and stored for the page.

        :raises AirflowFailException, AirflowSkipException: its status means to fail, or to skip.
        """
        conn_id, self.transfer = self._task.outbound_transfer_conn_id, transfer
        if self._told != (line := describe(transfer)):
            from outbound_transfer.delivery.shown import show

            self._told, hint = line, status_hint(transfer)
            self._task.log.log(logging.WARNING if hint else logging.INFO, "%s%s", line, hint)
            show(conn_id, lambda: OutboundTransferHook(conn_id).read_settings().account, {transfer.id: transfer})
        outcome = self._rules.outcome_of(transfer)
        if outcome is not None:
            metrics.DELIVERIES.emit(outcome=wait_outcome(transfer.status), conn_id=conn_id)
        if outcome == FAIL:
            raise names.AirflowFailException(f"Not delivered to all: {line}")
        if outcome == SKIP:
            raise names.AirflowSkipException(skip_reason(transfer))
        return outcome is not None

    def defer(self, *, end_from_trigger: bool = False) -> None:
        """Wait in the triggerer, which may finish a success or a skip without a worker."""
        from outbound_transfer.triggers.transfer import TransferTrigger

        deadline = self.deadline().isoformat()
        trigger = TransferTrigger(
            transfer_id=self.transfer_id,
            outbound_transfer_conn_id=self._task.outbound_transfer_conn_id,
            poke_interval=self._interval,
            deadline=deadline,
            rules=self._rules._asdict(),
            end_from_trigger=end_from_trigger,
            push_xcom=self._task.do_xcom_push,
        )
        self._task.log.info(
            "Waiting for transfer %s until %s, without a worker slot; polling every %g s",
            self.transfer_id,
            deadline if self._timeout < NO_TIMEOUT.total_seconds() else "it finishes",
            self._interval,
        )
        self._task.defer(trigger=trigger, method_name="execute_complete")

    def finish(self, event: Any, is_meant: Callable[[Transfer], bool] = lambda _: True) -> Transfer:
        """Return the transfer of the trigger's event, which is validated like any input from outside.

        :param is_meant: returns whether a transfer is the one that was sent, which its id alone does not prove.
        """
        end = msgspec.convert(event, WaitEnd)
        if end.transfer and not is_meant(end.transfer):
            raise names.AirflowFailException(
                "The connection now leads to a different transfer with the same id, so this one's status is unknown."
            )
        self.transfer = end.transfer
        if end.status == "error":
            with OutboundTransferHook(self._task.outbound_transfer_conn_id) as hook:
                self.poll(hook)  # its error has a class, for callbacks
            raise names.AirflowFailException(end.message)
        if end.status == "finished" and end.transfer and self.is_over(end.transfer):
            return end.transfer
        raise timed_out(end.transfer)

    def outcome(self, error: BaseException) -> TransferOutcome:
        """Return what became of the transfer, for an error or a skip that ends the wait."""
        if self.transfer:
            return TransferOutcome.from_transfer(self.transfer, str(error))
        return TransferOutcome(self.transfer_id, str(error))


def timed_out(transfer: Transfer | None) -> names.AirflowSensorTimeout:
    """Return the error of a wait whose timeout has passed."""
    status = describe(transfer) + status_hint(transfer) if transfer else "the service could not be reached"
    return names.AirflowSensorTimeout(f"Timed out waiting: {status}. Raise timeout to wait longer.")
