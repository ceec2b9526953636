"""Wait until a sent transfer is collected, has expired or is canceled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf, timezone

from outbound_transfer import waiting
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links import TransferLink, show_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class TransferSensor(waiting.WaitsForEnd, BaseSensorOperator):
    """Wait for a transfer's final status; the same in poke, reschedule and deferred mode.

    All deferred waits on one connection share one poll in a triggerer, so waiting costs next to nothing. An end is seen
    within ``poke_interval``, an expiry within seconds. ``timeout`` counts from the first try, and one last look
    precedes giving up. A failed look ends no wait, except when the key is refused or does not see the transfer.

    :param transfer_id: the sent transfer: its id, or a mapping with it, such as the result of the task that delivered.
    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: wait in the triggerer, without a worker slot.
    :param on_expired: what it means that the transfer expired before all had collected: ``fail``, ``succeed`` or
        ``skip``.
    :param on_canceled: the same for one that was canceled in the web application.
    :param accept_partial: succeed as soon as one recipient has collected.
    :param finish_in_triggerer: with ``deferrable``, end a success or a skip without starting a worker. Airflow runs no
        listener for such an end; where the task has outlets or callbacks for it, a worker ends it all the same.
    :return: the final transfer, as a mapping of service.md's fields as listings have them (without files), each
        recipient with ``picked_up_at``.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", "transfer_id", "on_expired", "on_canceled")
    operator_extra_links = (TransferLink(),)

    #: It only sees deliveries, and begins no row of the ledger.
    delivers = False

    def __init__(
        self,
        *,
        transfer_id: Any,
        outbound_transfer_conn_id: str = OutboundTransferHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        finish_in_triggerer: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        waiting.check_choices(on_expired=on_expired, on_canceled=on_canceled)
        self.transfer_id = transfer_id
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.deferrable = deferrable
        self.on_expired = on_expired
        self.on_canceled = on_canceled
        self.accept_partial = accept_partial
        self.finish_in_triggerer = finish_in_triggerer

    def execute(self, context: Context) -> Any:
        self.transfer_id = waiting.named(self.transfer_id)
        show_of(context, self.outbound_transfer_conn_id, self.transfer_id)
        if self.deferrable:
            self.defer_wait(self.transfer_id, waiting.deadline(self.timeout, context))
        if not self.reschedule:  # in which mode Airflow counts from the first try by itself
            self.timeout = max((waiting.deadline(self.timeout, context) - timezone.utcnow()).total_seconds(), 0)
        return super().execute(context)

    def hook(self) -> OutboundTransferHook:
        """The connection; a look is soon followed by the next, so it is not as patient as a delivery's calls."""
        from outbound_transfer.client.retry import LOOKS

        return OutboundTransferHook(self.outbound_transfer_conn_id, policy=LOOKS)

    def poke(self, context: Context) -> PokeReturnValue:
        """One look at the transfer."""
        from outbound_transfer.ledger.recording import recording

        with self.hook() as hook, recording(self, context, hook) as journal:
            if transfer := waiting.look(hook, waiting.named(self.transfer_id), self.log):
                journal.saw(transfer)
        result = self.conclude(transfer) if transfer else None
        return PokeReturnValue(is_done=result is not None, xcom_value=result)
