"""The ledger in a triggerer: one thread for all its waits, which no wait and no poll ever waits for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.ledger.counts import CALLS
from outbound_transfer.ledger.place import Place, place, tables_of
from outbound_transfer.ledger.writer import Writer

if TYPE_CHECKING:
    from outbound_transfer.protocol.models import Transfer
    from outbound_transfer.warehouse.deliveries import DeliveryTables, Note

log = logging.getLogger(__name__)

#: Seconds between two times that the counts of calls are taken to the ledger.
INTERVAL: Final = 60.0

#: Notes that may wait for the thread; more are dropped, as the page knows those ends from the transfers' table too.
MOST: Final = 1_000


class Desk:
    """Takes what the triggers tell to the ledger."""

    def __init__(self) -> None:
        self._writer: Writer[DeliveryTables] | None = None
        self._counted = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self) -> None:
        """Take the calls that were counted to the ledger, now and then."""
        if (where := place()) and time.monotonic() - self._counted >= INTERVAL:
            self._counted = time.monotonic()
            self._start(self._count(where))

    def ended(self, transfer: Transfer, conn_id: str) -> None:
        """A wait ends without a worker that could tell how."""
        if where := place():
            self._start(self._ended(where, transfer, conn_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # Beside the triggers, not in them: looking a connection up takes a moment, and may take long.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("The delivery ledger is not told: %s: %s", type(error).__name__, str(error)[:300])

    async def _count(self, where: Place) -> None:
        writer = await self._open(where)
        if writer.backlog < MOST and (calls := CALLS.take()):
            writer.put(calls[0][0], lambda tables: tables.count(calls))

    async def _ended(self, where: Place, transfer: Transfer, conn_id: str) -> None:
        from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
        from outbound_transfer.ledger.journal import Journal
        from outbound_transfer.warehouse.deliveries import Task
        from outbound_transfer.warehouse.progress import feed_name

        settings = await OutboundTransferHook(conn_id).get_async_settings()
        writer = await self._open(where)  # and no pause until it has the note: it may be replaced

        def put(note: Note) -> None:
            writer.put(note.transfer_id, lambda tables: tables.save(note))

        if writer.backlog < MOST:
            # The row is another task's, so whose wait this was is of no account.
            Journal(feed_name(settings.base_url), Task(conn_id, "", "", "", -1, 0, delivers=False), put).saw(transfer)

    async def _open(self, where: Place) -> Writer[DeliveryTables]:
        """The thread; anew after a failure, as the connection may have been corrected since."""
        from airflow.sdk import BaseHook

        before = self._writer
        if before is not None and not (before.has_failed and not before.backlog):
            return before
        connection = await BaseHook.aget_connection(where.conn_id)
        if self._writer is before:  # nobody else was faster
            if before is not None:
                before.close(0)
            self._writer = Writer(partial(tables_of, where, connection), log)
        assert self._writer is not None
        return self._writer


#: Of this process.
DESK: Final = Desk()
