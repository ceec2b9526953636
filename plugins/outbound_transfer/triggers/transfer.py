"""Triggers: the part of a wait that holds no worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import timezone
from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from outbound_transfer.client import AsyncClient
    from outbound_transfer.protocol.models import Transfer


#: Seconds between two looks, at the least: an interval of 0 must not make a hot loop.
SHORTEST_INTERVAL: Final = 1.0

#: Seconds that the look which precedes a timeout may take.
LAST_LOOK: Final = 30.0


class TransferTrigger(BaseTrigger):
    """Polls one transfer until its status is final, a deadline passes, or the service refuses.

    Fires once, with ``{"ending": "ended" | "timed out" | "failed", "transfer": mapping or None, "message": text}``.

    :param transfer_id: the sent transfer.
    :param poke_interval: seconds between two looks.
    :param deadline: ISO 8601 instant; one last look precedes giving up.
    :param accept_partial: end as soon as one recipient has collected.
    """

    def __init__(
        self,
        transfer_id: str,
        outbound_transfer_conn_id: str,
        poke_interval: float,
        deadline: str,
        accept_partial: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.transfer_id = transfer_id
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.poke_interval = poke_interval
        self.deadline = deadline
        self.accept_partial = accept_partial

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "transfer_id": self.transfer_id,
                "outbound_transfer_conn_id": self.outbound_transfer_conn_id,
                "poke_interval": self.poke_interval,
                "deadline": self.deadline,
                "accept_partial": self.accept_partial,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
        from outbound_transfer.protocol.errors import CallError

        hook = OutboundTransferHook(self.outbound_transfer_conn_id)
        try:
            async with await hook.get_async_conn() as client:
                yield await self._end(client)
        except (CallError, ValueError) as error:
            yield TriggerEvent({"ending": "failed", "transfer": None, "message": str(error)})

    async def _end(self, client: AsyncClient) -> TriggerEvent:
        from outbound_transfer.protocol.models import as_json
        from outbound_transfer.protocol.outcomes import OutcomeRules

        rules = OutcomeRules(accept_partial=self.accept_partial)
        deadline = datetime.fromisoformat(self.deadline)
        seen: Transfer | None = None
        while True:
            left = (deadline - timezone.utcnow()).total_seconds()
            seen = await self._look(client, max(left, LAST_LOOK)) or seen
            if seen is not None and rules.of(seen) is not None:
                return TriggerEvent({"ending": "ended", "transfer": as_json(seen), "message": ""})
            if left <= 0:
                return TriggerEvent({"ending": "timed out", "transfer": as_json(seen), "message": ""})
            await asyncio.sleep(min(max(self.poke_interval, SHORTEST_INTERVAL), left))

    async def _look(self, client: AsyncClient, timeout: float) -> Transfer | None:
        """One look, retries included; None where it failed in a way that passes: no such failure ends a wait."""
        from outbound_transfer.protocol import calls
        from outbound_transfer.protocol.errors import CallError

        try:
            return await asyncio.wait_for(client.perform(calls.get_transfer(self.transfer_id)), timeout)
        except asyncio.TimeoutError:
            self.log.warning("Transfer %s could not be seen in time", self.transfer_id)
        except CallError as error:
            if not error.passes:
                raise
            self.log.warning("Cannot see transfer %s just now; the wait goes on: %s", self.transfer_id, error)
        return None
