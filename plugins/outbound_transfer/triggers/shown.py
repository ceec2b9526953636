"""Store the status of waited-for transfers for the page, without blocking a wait or a poll."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.delivery.place import find_rows
from outbound_transfer.delivery.shown import show

if TYPE_CHECKING:
    from outbound_transfer.client.models import Transfer

log = logging.getLogger(__name__)

#: By connection and account, the transfers that have not been stored yet.
_pending: Final[dict[tuple[str, str], dict[str, Transfer]]] = {}

#: The task that stores them, by event loop.
_writers: Final[dict[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}


def show_soon(conn_id: str, account: str, transfer: Transfer) -> None:
    """Queue a transfer whose status is to be stored. Never raises."""
    _pending.setdefault((conn_id, account), {})[transfer.id] = transfer
    loop = asyncio.get_running_loop()
    if loop not in _writers:
        _writers[loop] = loop.create_task(_write())
        _writers[loop].add_done_callback(lambda _: _writers.pop(loop))


async def _write() -> None:
    while _pending:
        (conn_id, account), transfers = _pending.popitem()
        try:
            # The database may stall, so only the connection look-up holds the lock on Airflow.
            if rows := await call_airflow(find_rows):
                await asyncio.to_thread(show, rows, account, conn_id, *transfers.values())
        except Exception as error:
            log.warning("The page may show an older state of deliveries: %s: %s", type(error).__name__, error)
