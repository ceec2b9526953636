"""Wait until a sent transfer is picked up, expires or is canceled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Unpack

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from outbound_transfer.airflow_compat.names import AirflowSensorTimeout, conf, timezone
from outbound_transfer.client.models import to_summary_dict
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links.transfer import TransferLink, push_link
from outbound_transfer.operators.arguments import (
    OUTCOME_CHECKS,
    TRANSFER_ID_CHECK,
    check_all,
    check_literals,
    resolve_transfer_id,
)
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE
from outbound_transfer.operators.errors import fail_without_retry, report_outcome
from outbound_transfer.operators.wait import NO_TIMEOUT, Pickup, timed_out

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.operators.arguments import TransferId
    from outbound_transfer.operators.task_arguments import SensorArguments

_CHECKS: Final = (TRANSFER_ID_CHECK, *OUTCOME_CHECKS)

#: Airflow's built-in ``[sensors] default_timeout`` in seconds, which is shorter than a transfer's lifetime.
_SHIPPED_TIMEOUT: Final = 7 * 86_400.0


class TransferSensor(BaseSensorOperator):
    """Wait for a transfer's terminal status; the same in poke, reschedule and deferred mode.

    A terminal status is seen within ``poke_interval``, an expiry within seconds. A failed poll does not end the wait,
    unless the API key is refused or cannot see the transfer.

    :param transfer_id: the sent transfer: its id, or a mapping with its id, such as the result of the delivering task.
    :param poke_interval: time between two polls.
    :param timeout: maximum time to wait, counted from the first attempt; one last poll precedes a timeout. By default,
        until the transfer finishes, at its expiry at the latest, or ``[sensors] default_timeout`` if it was changed.
    :param on_expired: outcome of the task when the transfer expires: ``fail``, ``succeed`` or ``skip``.
    :param on_canceled: outcome of the task when the transfer is canceled: ``fail``, ``succeed`` or ``skip``.
    :param accept_partial: succeed as soon as one recipient has picked up the transfer.
    :param end_from_trigger: with ``deferrable``, finish a success or a skip in the triggerer, without starting a
        worker. Airflow then does not call listeners. A task with outlets or such callbacks still finishes in a worker.
    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: wait in the triggerer, without a worker slot.
    :return: the final transfer, with the fields of service-api.md, R11, as listings have them (without files), each
        recipient with ``picked_up_at``.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", "transfer_id", "on_expired", "on_canceled")
    operator_extra_links = (TransferLink(),)

    _pickup: Pickup

    def __init__(
        self,
        *,
        transfer_id: TransferId,
        poke_interval: timedelta = timedelta(minutes=1),
        timeout: timedelta | None = None,
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        end_from_trigger: bool = False,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Unpack[SensorArguments],
    ) -> None:
        super().__init__(
            poke_interval=poke_interval, timeout=_default_timeout() if timeout is None else timeout, **kwargs
        )
        self.transfer_id: Any = transfer_id
        self.on_expired = on_expired
        self.on_canceled = on_canceled
        self.accept_partial = accept_partial
        self.end_from_trigger = end_from_trigger
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.deferrable = deferrable
        check_literals(self, _CHECKS)

    def execute(self, context: Context) -> Any:
        with self._waiting(context):
            if not self.reschedule or context["ti"].get_first_reschedule_date(context) is None:
                settings = OutboundTransferHook(self.outbound_transfer_conn_id).read_settings()  # fails in each mode
                push_link(context, settings, self._pickup.transfer_id)
            if self.deferrable:
                self._pickup.defer(end_from_trigger=self._can_end_from_trigger())
            if not self.reschedule:  # in reschedule mode Airflow itself counts from the first poke
                self.timeout = max((self._pickup.deadline() - timezone.utcnow()).total_seconds(), 0)
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:  # Airflow's message does not describe the transfer
                raise timed_out(self._pickup.transfer) from error

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with self._waiting(context):
            return super().resume_execution(next_method, next_kwargs, context)

    @contextmanager
    def _waiting(self, context: Context) -> Iterator[None]:
        """Add the transfer's outcome to an error or a skip that ends the block."""
        with fail_without_retry():
            check_all(self, _CHECKS)
            self._pickup = Pickup(self, resolve_transfer_id(self.transfer_id), context)
        with report_outcome(context, self._pickup.outcome), fail_without_retry():
            yield

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002  # Airflow passes the context
        with OutboundTransferHook(self.outbound_transfer_conn_id) as hook:
            transfer = self._pickup.poll(hook)
        if transfer is None or not self._pickup.is_over(transfer):
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=to_summary_dict(transfer))

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:  # noqa: ARG002  # Airflow's
        return to_summary_dict(self._pickup.finish(event))

    def _can_end_from_trigger(self) -> bool:
        # The triggerer does not emit asset events, split outputs or run callbacks.
        needs_worker = self.outlets or self.multiple_outputs or self.on_success_callback or self.on_skipped_callback
        return self.end_from_trigger and not needs_worker


def _default_timeout() -> float:
    configured = conf.getfloat("sensors", "default_timeout", fallback=_SHIPPED_TIMEOUT)
    return NO_TIMEOUT.total_seconds() if configured == _SHIPPED_TIMEOUT else configured
