"""Wait until a sent transfer is picked up, expires or is canceled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from outbound_transfer.airflow_compat.names import AirflowSensorTimeout, conf, timezone
from outbound_transfer.airflow_compat.rendering import is_unmapped
from outbound_transfer.client.models import to_summary_dict
from outbound_transfer.client.outcomes import TransferOutcome
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links.transfer import TransferLink, push_awaited_transfer
from outbound_transfer.tasks.arguments import is_fixed
from outbound_transfer.tasks.outcome_report import report_outcome
from outbound_transfer.tasks.waiting import DeferrableWaitMixin, checked_transfer_id, default_sensor_timeout, timed_out

if TYPE_CHECKING:
    from airflow.sdk import Context


class TransferSensor(DeferrableWaitMixin, BaseSensorOperator):
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
    :param end_from_trigger: with ``deferrable``, finish a success or a skip in the triggerer, without starting a
        worker. Airflow then runs no listener. A task with outlets, or callbacks for that state, finishes in a worker
        all the same.
    :return: the final transfer, with the fields of service-api.md, R11, as listings have them (without files), each
        recipient with ``picked_up_at``.
    """

    template_fields: Sequence[str] = (
        "outbound_transfer_conn_id",
        "transfer_id",
        "on_expired",
        "on_canceled",
    )
    operator_extra_links = (TransferLink(),)

    def __init__(
        self,
        *,
        transfer_id: Any,
        outbound_transfer_conn_id: str = OutboundTransferHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        timeout: float | timedelta | None = None,
        end_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=default_sensor_timeout() if timeout is None else timeout, **kwargs)
        self.transfer_id = transfer_id
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.deferrable = deferrable
        self.end_from_trigger = end_from_trigger
        if is_fixed(transfer_id) and not is_unmapped(self):
            checked_transfer_id(transfer_id)

    def execute(self, context: Context) -> Any:
        self.transfer_id = checked_transfer_id(self.transfer_id)
        push_awaited_transfer(context, self.outbound_transfer_conn_id, self.transfer_id)
        with report_outcome(context, self._find_outcome):
            if self.deferrable:
                deadline = self.get_or_create_deadline(context)
                self.defer_wait(self.transfer_id, deadline, end_from_trigger=self._can_end_from_trigger())
            if not self.reschedule:  # in reschedule mode Airflow itself counts from the first try
                self.timeout = max((self.get_or_create_deadline(context) - timezone.utcnow()).total_seconds(), 0)
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:  # Airflow's text does not say what the transfer is
                raise timed_out(self._last_read) from error

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with report_outcome(context, self._find_outcome):
            return super().resume_execution(next_method, next_kwargs, context)

    def _can_end_from_trigger(self) -> bool:
        """Return whether no worker is needed: the triggerer emits no asset events, splits no outputs, calls nobody."""
        needs_worker = self.outlets or self.multiple_outputs or self.on_success_callback or self.on_skipped_callback
        return self.end_from_trigger and not needs_worker

    def _find_outcome(self, error: BaseException) -> TransferOutcome:
        if self._last_read:
            return TransferOutcome.from_transfer(self._last_read, str(error))
        return TransferOutcome(checked_transfer_id(self.transfer_id), str(error))

    def hook(self) -> OutboundTransferHook:
        """Return the hook of the connection; a failed poll is retried less than a delivery, as the next one is near."""
        return OutboundTransferHook(self.outbound_transfer_conn_id)

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002  # Airflow passes the context
        """Read the transfer once."""
        with self.hook() as hook:
            transfer = self.poll_transfer(hook, checked_transfer_id(self.transfer_id))
        is_over = transfer is not None and self.is_over(transfer)
        return PokeReturnValue(is_done=is_over, xcom_value=to_summary_dict(transfer) if transfer and is_over else None)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:  # noqa: ARG002  # Airflow's
        """Finish with the trigger's event."""
        return to_summary_dict(self.resolve_event(event))
