"""The ledger in a triggerer: one thread for all waiters; neither a waiter nor a poll waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.ledger.background_writer import BackgroundWriter
from outbound_transfer.ledger.config import LedgerConfig, find_ledger_connection, load_config, open_tables
from outbound_transfer.ledger.recorder import DeliveryRecorder
from outbound_transfer.warehouse.deliveries import TaskRef

if TYPE_CHECKING:
    from outbound_transfer.protocol.models import Transfer
    from outbound_transfer.warehouse.deliveries import DeliveryFailure, DeliveryTables, DeliveryUpdate

log = logging.getLogger(__name__)

#: Maximum number of pending updates; more are dropped: the page knows these from the transfers' table, too.
MAX_BACKLOG: Final = 1_000


class TriggererLedger:
    """Writes finished transfers to the ledger, for the triggers of this process."""

    def __init__(self) -> None:
        self._writer: BackgroundWriter[DeliveryTables] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def record_transfer(self, transfer: Transfer, conn_id: str, account: Callable[[], Awaitable[str]]) -> None:
        """Record a transfer that a deferred task waits for.

        :param account: returns the name of the transfer's account.
        """
        if config := load_config():
            self._start(self._record_transfer(config, transfer, conn_id, account))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # In a task of its own, because looking up a connection may take long.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("Could not write to the delivery ledger: %s: %s", type(error).__name__, str(error)[:300])

    async def _record_transfer(
        self, config: LedgerConfig, transfer: Transfer, conn_id: str, account: Callable[[], Awaitable[str]]
    ) -> None:
        name = await account()
        writer = await self._open(config)  # no await from here to the submit: the writer may be replaced

        def submit(update: DeliveryUpdate | DeliveryFailure) -> None:
            writer.submit(update.transfer_id, lambda tables: tables.save(update))

        if writer.backlog < MAX_BACKLOG:
            # The row belongs to another task; the waiter's task is not recorded.
            task = TaskRef(conn_id, "", "", "", -1, 0, owns_delivery=False)
            DeliveryRecorder(lambda: name, task, submit, naming=config.recipients).record_transfer(transfer)

    async def _open(self, config: LedgerConfig) -> BackgroundWriter[DeliveryTables]:
        """Return the writer; a new one after a failure, as the connection may have been corrected since."""
        before = self._writer
        if before is not None and not (before.has_failed and not before.backlog):
            return before
        connection = await call_airflow(partial(find_ledger_connection, config))
        if self._writer is before:  # no other task has replaced it
            self._writer = BackgroundWriter(partial(open_tables, config, connection), log)
            if before is not None:
                before.close(0)
        assert self._writer is not None
        return self._writer


#: The ledger of this process.
TRIGGERER_LEDGER: Final = TriggererLedger()
