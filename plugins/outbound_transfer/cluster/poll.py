"""The poll of a key, shared by all triggerers that use the key and the same database."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING

from outbound_transfer.cluster.allowance import key_of
from outbound_transfer.cluster.database import CALLS, EVENTS, DatabaseUnavailable, SharedDatabase, find_database
from outbound_transfer.observability import metrics
from outbound_transfer.warehouse.event_values import EventValues
from outbound_transfer.warehouse.poll_tables import PollTables

if TYPE_CHECKING:
    from outbound_transfer.client import Settings
    from outbound_transfer.protocol.poll_lease import ClusterState, ProcessState
    from outbound_transfer.warehouse.database import Warehouse
    from outbound_transfer.warehouse.key_rows import Key


class DatabasePoll:
    """Connects this process with the others by tables of the shared database (:class:`.polling.cluster.ClusterPoll`).

    :param process: the process's id, of at most 100 characters.
    :param events: the same database; it is another object, as a slow read of events must not hold up anything else.
    """

    def __init__(self, database: SharedDatabase, key: Key, process: str, events: SharedDatabase) -> None:
        self._database, self._key, self._process, self._events = database, key, process, events
        self._tables: PollTables | None = None
        self._event_values = EventValues(key.account)

    async def sync(self, own: ProcessState) -> ClusterState | None:
        """Share in one transaction; None if the database is unavailable."""
        try:
            state = await asyncio.to_thread(self._database.run, lambda warehouse: self._tables_in(warehouse).sync(own))
        except DatabaseUnavailable:
            self._tables = None  # the transaction may be applied later: what it returns is lost, so all is written anew
            return None
        metrics.POLL_LEASE.emit(int(state.is_holder), conn_id=self._key.conn_id, triggerer=socket.gethostname())
        return state

    async def read_events(self) -> Collection[str] | None:
        """Return the texts in the events that have landed since the last call; None if they cannot be read."""
        try:
            return await asyncio.to_thread(self._events.run, self._event_values.read_new)
        except DatabaseUnavailable:
            return None

    def leave(self) -> None:
        """Give up the lease, and what this process waits for; does not wait."""
        self._database.submit(lambda warehouse: PollTables(warehouse, self._key, self._process).leave())
        metrics.POLL_LEASE.emit(0, conn_id=self._key.conn_id, triggerer=socket.gethostname())

    def _tables_in(self, warehouse: Warehouse) -> PollTables:
        if self._tables is None or self._tables.warehouse is not warehouse:
            self._tables = PollTables(warehouse, self._key, self._process)
        return self._tables


def find_cluster_poll(settings: Settings, conn_id: str) -> DatabasePoll | None:
    """Return what connects this process with the others that use the connection's key; None if no database is shared.

    Asks Airflow for the database's connection, so call it where this is allowed. Never raises.
    """
    database = find_database(CALLS)
    events = find_database(EVENTS) if database else None
    if database is None or events is None:
        return None
    process = f"{socket.gethostname()[:50]}:{os.getpid()}:{uuid.uuid4().hex}"
    return DatabasePoll(database, key_of(settings, conn_id), process, events)
