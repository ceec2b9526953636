"""What the triggerers that use one key and one database share of their polls: pages of listings, and new events."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final

from outbound_transfer.cluster.allowance import key_of
from outbound_transfer.cluster.database import CALLS, EVENTS, DatabaseUnavailable, SharedDatabase, find_database
from outbound_transfer.protocol.messages import Call
from outbound_transfer.protocol.models import TransferPage
from outbound_transfer.warehouse.event_values import EventValues
from outbound_transfer.warehouse.key_allowance import Key, PageClaim, claim_page, forget_pages, store_page

if TYPE_CHECKING:
    from outbound_transfer.client import Settings
    from outbound_transfer.warehouse.database import Warehouse

#: Seconds from one look for a page that another process is about to read to the next one.
PAGE_INTERVAL: Final = 1.0


class SharedPages:
    """Reads each page of a listing once for all processes, through the shared database. No method raises by itself.

    :param events: the same database; it is another object, as a slow read of events must not hold up anything else.
    """

    def __init__(self, database: SharedDatabase, key: Key, events: SharedDatabase) -> None:
        self._database, self._key, self._events = database, key, events
        self._event_values = EventValues(key.account)

    async def read(
        self,
        call: Call[TransferPage],
        perform: Callable[[Call[TransferPage]], Awaitable[TransferPage]],
        sleep: Callable[[float], Awaitable[None]],
        max_age: Callable[[], float],
    ) -> TransferPage:
        """Return a page that another process has read lately, or read it for all.

        :param perform: reads it; what it raises is raised.
        :param sleep: waits while another process is about to read it.
        :param max_age: returns the seconds since a page was read for which it is of use.
        """
        parameters = f"{call.params['status']} {call.params.get('cursor', '')}"
        listing = hashlib.sha256(parameters.encode()).hexdigest()[:32]
        while (claim := await self._claim(listing, max_age())).page is None and claim.number is None:
            await sleep(PAGE_INTERVAL)
        if claim.page is not None:
            return claim.page
        page: TransferPage | None = None
        try:
            page = await perform(call)
        finally:
            if number := claim.number:
                self._database.submit(lambda warehouse: store_page(warehouse, self._key, listing, number, page))
        return page

    async def read_events(self) -> Collection[str] | None:
        """Return the texts in the events that have landed since the last call; None if they cannot be read."""
        try:
            return await asyncio.to_thread(self._events.run, self._event_values.read_new)
        except DatabaseUnavailable:
            return None

    def leave(self) -> None:
        """Remove the pages, which nobody may need any more; does not wait."""
        self._database.submit(lambda warehouse: forget_pages(warehouse, self._key))

    async def _claim(self, listing: str, max_age: float) -> PageClaim:
        def claim(warehouse: Warehouse) -> PageClaim:
            return claim_page(warehouse, self._key, listing, max_age)

        try:
            return await asyncio.to_thread(self._database.run, claim)
        except DatabaseUnavailable:
            return PageClaim(number=0)


def find_shared_pages(settings: Settings, conn_id: str) -> SharedPages | None:
    """Return what this process shares with the others that use the connection's key; None if no database is shared.

    Asks Airflow for the database's connection, so call it where this is allowed. Never raises.
    """
    database = find_database(CALLS)
    events = find_database(EVENTS) if database else None
    return SharedPages(database, key_of(settings, conn_id), events) if database and events else None
