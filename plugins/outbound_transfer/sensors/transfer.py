"""Wait until a sent transfer is picked up, expires or is canceled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from outbound_transfer.airflow_compat.mapping import is_unmapped
from outbound_transfer.airflow_compat.names import AirflowSensorTimeout, conf, timezone
from outbound_transfer.client.outcomes import TransferOutcome
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links.transfer import TransferLink, push_awaited_transfer
from outbound_transfer.tasks.arguments import is_fixed
from outbound_transfer.tasks.outcome_report import report_outcome
from outbound_transfer.tasks.receipt import ReceiptMixin
from outbound_transfer.tasks.waiting import DeferrableWaitMixin, checked_transfer_id, default_sensor_timeout, timed_out

if TYPE_CHECKING:
    from airflow.sdk import Context


class TransferSensor(ReceiptMixin, DeferrableWaitMixin, BaseSensorOperator):
    """Wait for a transfer's terminal status; the same in poke, reschedule and deferred mode.

    All deferred waiters of one connection share one poll in a triggerer. A terminal status is seen within
    ``poke_interval``, an expiry within seconds. A failed poll does not end the wait, unless the key is refused or does
    not see the transfer.

    :param transfer_id: the sent transfer: its id, or a mapping with its id, such as the result of the delivering task.
    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: wait in the triggerer, without a worker slot.
    :param timeout: how long to wait at most, in seconds or as a timedelta, counted from the first try; one last poll
        precedes a timeout. By default until the transfer finishes, which its expiry does at the latest, or as long as
        ``[sensors] default_timeout`` where that was changed.
    :param on_expired: outcome of the task when the transfer expires: ``fail``, ``succeed`` or ``skip``.
    :param on_canceled: outcome of the task when the transfer is canceled: ``fail``, ``succeed`` or ``skip``.
    :param accept_partial: whether the task succeeds as soon as one recipient has picked up.
    :param finish_in_triggerer: whether a success or a skip finishes without a worker. Needs
        ``deferrable``. Airflow then runs no listener. A task with a receipt, outlets, or callbacks for that state
        finishes in a worker all the same.
    :param receipt: where to write a JSON document of what was sent, to whom, as :class:`.DeliverFilesOperator` has it:
        when the wait is over, however it is. Give the task that sends the same: the digests and the option of
        ``security`` come from it and from the other tasks upstream.
    :param notify_after: call the notifiers so long after the transfer's ``sent_at`` or, if negative, before its
        ``expires_at``, if somebody has not picked up by then: one timedelta or several. The wait goes on.
    :param notifiers: one ``BaseNotifier`` or several; their context has the :class:`.TransferOutcome` as ``outcome``.
    :return: the final transfer, with the fields of service-api.md, R11, as listings have them (without files), each
        recipient with ``picked_up_at``.
    """

    template_fields: Sequence[str] = (
        "outbound_transfer_conn_id",
        "transfer_id",
        "on_expired",
        "on_canceled",
        "receipt",
    )
    operator_extra_links = (TransferLink(),)

    #: Of a delivery, it only sees what became of it.
    owns_delivery = False

    def __init__(
        self,
        *,
        transfer_id: Any,
        outbound_transfer_conn_id: str = OutboundTransferHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=default_sensor_timeout() if timeout is None else timeout, **kwargs)
        self.transfer_id = transfer_id
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.deferrable = deferrable
        if is_fixed(transfer_id) and not is_unmapped(self):
            checked_transfer_id(transfer_id)

    def execute(self, context: Context) -> Any:
        self.transfer_id = checked_transfer_id(self.transfer_id)
        self.check_rendered_receipt()
        self.late_notifications()
        push_awaited_transfer(context, self.outbound_transfer_conn_id, self.transfer_id)
        with report_outcome(context, self._find_outcome), self.receipt_of_wait(context):
            if self.deferrable:
                self.defer_wait(self.transfer_id, self.get_or_create_deadline(context), context)
            if not self.reschedule:  # in reschedule mode Airflow itself counts from the first try
                self.timeout = max((self.get_or_create_deadline(context) - timezone.utcnow()).total_seconds(), 0)
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:  # Airflow's text does not say what the transfer is
                raise timed_out(self._last_read) from error

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with report_outcome(context, self._find_outcome), self.receipt_of_wait(context):
            return super().resume_execution(next_method, next_kwargs, context)

    def _find_outcome(self, error: BaseException) -> TransferOutcome:
        if self._last_read:
            return TransferOutcome.from_transfer(self._last_read, str(error))
        return TransferOutcome(checked_transfer_id(self.transfer_id), str(error))

    def hook(self) -> OutboundTransferHook:
        """Return the hook of the connection; a failed poll is retried less than a delivery, as the next one is near."""
        return OutboundTransferHook(self.outbound_transfer_conn_id)

    def poke(self, context: Context) -> PokeReturnValue:
        """Read the transfer once."""
        with self.hook() as hook:
            transfer = self.poll_transfer(hook, checked_transfer_id(self.transfer_id))
        result = self.resolve_outcome(transfer) if transfer else None
        if transfer and result is None:
            self.notify_if_late(transfer, context)
        return PokeReturnValue(is_done=result is not None, xcom_value=result)
