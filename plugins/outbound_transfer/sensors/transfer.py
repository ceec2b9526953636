"""Wait until a sent transfer is collected, has expired or is canceled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from outbound_transfer import waiting
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from outbound_transfer.protocol.outcomes import OutcomeRules
    from outbound_transfer.triggers.transfer import TransferTrigger


class TransferSensor(BaseSensorOperator):
    """Wait for a transfer's final status; the same in poke, reschedule and deferred mode.

    A failed look never ends the wait, except when the key is refused or does not see the transfer (401, 403, 404).

    :param transfer_id: the sent transfer.
    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: wait in the triggerer, without a worker slot.
    :param on_expired: what it means that the transfer expired before all had collected: ``fail``, ``succeed`` or
        ``skip``.
    :param on_canceled: the same for one that was canceled in the web application.
    :param accept_partial: succeed as soon as one recipient has collected.
    :return: the final transfer, as a mapping of service.md's fields, each recipient with ``picked_up_at``.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id", "transfer_id", "on_expired", "on_canceled")

    def __init__(
        self,
        *,
        transfer_id: str,
        outbound_transfer_conn_id: str = OutboundTransferHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
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

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        deadline = waiting.deadline(self.timeout)
        if not (look := self.poke(context)):
            self.defer(trigger=self._trigger(deadline), method_name="execute_complete")
        return look.xcom_value

    def _trigger(self, deadline: datetime) -> TransferTrigger:
        return waiting.trigger(
            self.transfer_id,
            self.outbound_transfer_conn_id,
            poke_interval=self.poke_interval,
            deadline=deadline,
            accept_partial=self.accept_partial,
        )

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002  # the base class passes it
        """One look at the transfer."""
        with OutboundTransferHook(self.outbound_transfer_conn_id) as hook:
            transfer = waiting.look(hook, self.transfer_id, self.log)
        result = waiting.conclude(transfer, self._rules(), self.log) if transfer else None
        return PokeReturnValue(is_done=result is not None, xcom_value=result)

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """End with what the trigger saw."""
        return waiting.conclude_event(event, self._rules(), self.log)

    def _rules(self) -> OutcomeRules:
        return waiting.rules(self.on_expired, self.on_canceled, accept_partial=self.accept_partial)
