"""One poll for all waits of a connection in an event loop.

A task of the loop decides when to read, and asks Airflow for the connection. A thread of its own reads
(:mod:`.reader`); what it has read reaches the waits after each response.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.client.errors import CallsStopped, Forbidden, InvalidApiKey
from outbound_transfer.client.models import PENDING, Transfer
from outbound_transfer.traces import trace
from outbound_transfer.waiting.pages import find_pages, start_thread
from outbound_transfer.waiting.reader import Reader
from outbound_transfer.waiting.wait import Wait, WaitEnd

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.client.settings import Settings

log = logging.getLogger(__name__)

#: Seconds between two looks for waits that are due. The first comes after one, so that others may join.
TICK: Final = 2.0

#: Seconds from one poll to the next for each call of the first: most of the key's 60 a minute are left to deliveries.
PACE: Final = 2.5

#: Seconds after which a poll that failed is repeated.
RETRY_SECONDS: Final = 30.0

#: Seconds after which a poll restarts, without what it knows of listings and of a database that has failed.
READER_LIFE: Final = 3_600.0

#: Seconds after its deadline in which a wait may end with what a last poll reads.
LAST_CHANCE: Final = 180.0

#: Part of the interval for which a page that another triggerer has read is of use.
PAGE_LIFE: Final = 0.75

#: Stores transfers for the page.
Show: TypeAlias = Callable[[Sequence[Transfer]], object]

#: By connection and event loop, as ``dag.test()`` runs each trigger in one of its own.
_polls: Final[dict[tuple[str, asyncio.AbstractEventLoop], Poll]] = {}


@contextmanager
def join_poll(conn_id: str, wait: Wait, new_poll: Callable[[], Poll]) -> Iterator[Poll]:
    """Poll for a wait while the block runs, together with the others of the connection."""
    loop = asyncio.get_running_loop()
    poll = _polls.get((conn_id, loop)) or _polls.setdefault((conn_id, loop), new_poll())
    poll.waits.add(wait)
    left = max(wait.deadline - time.time(), 0.0) + LAST_CHANCE
    timer = loop.call_later(left, lambda: wait.finish(WaitEnd("timeout", wait.seen)))
    try:
        yield poll
    finally:
        timer.cancel()
        poll.waits.discard(wait)
        if not poll.waits:
            del _polls[conn_id, loop]
            poll.stop()


class Poll:
    """Nothing that the service, Airflow or a database does ends it: it ends with its last wait.

    :param open_client: reads the connection and opens a client, for each poll: the key may be replaced, and a server
        that is not asked for some seconds closes its connections anyway.
    :param on_poll: called with the seconds that a poll took.
    :param open_page: returns what stores transfers for the page, in a thread; asks Airflow.
    """

    def __init__(
        self,
        open_client: Callable[[], Client],
        on_poll: Callable[[float], object] = lambda _: None,
        open_page: Callable[[Settings], Show] = lambda _: lambda _: None,
    ) -> None:
        self.waits: set[Wait] = set()
        self._open_client, self._on_poll, self._open_page = open_client, on_poll, open_page
        self._client: Client | None = None
        self._settings: Settings | None = None
        self._failure: Exception | None = None
        self._origin, self._not_before, self._reader_until = time.time() + TICK / 2, 0.0, 0.0
        # Without the context of the first wait, whose log would get what concerns all.
        self._task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._run())

    def stop(self) -> None:
        """End soon: a call that is under way is the last one, and no call waits for a retry."""
        self._task.cancel()
        if self._client:
            self._client.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                await self._look()
            except Exception as error:
                self._fail(error)

    async def _look(self) -> None:
        """Poll if waits are due."""
        at, began = time.time(), time.monotonic()
        due = [wait for wait in self.waits if wait.end is None and wait.is_due(self._origin, at)]
        if due and began >= self._not_before:
            try:
                calls = await self._poll(sorted(due, key=lambda wait: wait.asked), at)
                self._not_before, self._failure = began + PACE * calls, None
            finally:
                self._on_poll(time.monotonic() - began)

    async def _poll(self, due: Sequence[Wait], began: float) -> int:
        """Read what the waits wait for; return the number of calls."""
        client = self._client = await call_airflow(self._open_client)
        if client.settings != self._settings or time.monotonic() >= self._reader_until:
            self._reader = Reader(await call_airflow(partial(find_pages, client.settings)))
            self._show = await call_airflow(partial(self._open_page, client.settings))
            self._reader_until = time.monotonic() + READER_LIFE
            self._settings, self._failure = client.settings, None
        loop, changed, waits = asyncio.get_running_loop(), list[Transfer](), defaultdict[str, list[Wait]](list)
        for wait in self.waits:
            waits[wait.transfer_id].append(wait)

        def tell(transfer_id: str, read: Transfer | Exception | None, at: float) -> None:
            if not self.waits:
                raise CallsStopped
            if isinstance(read, Transfer) and any(_shows_more(read, each.seen) for each in waits[transfer_id]):
                changed.append(read)
            for each in waits[transfer_id]:  # one by one: one that cannot be updated holds up no other
                loop.call_soon_threadsafe(each.update, read, at, client.clock_ahead)

        wanted = {wait.transfer_id: wait.seen for wait in due}
        wanted |= {wait.transfer_id: None for wait in due if wait.must_be_read(began)}
        max_age = PAGE_LIFE * min(wait.interval for wait in due)

        def work() -> None:
            with client, trace("poll", waiters=len(wanted)):
                self._reader.read(client, wanted, began, max_age, tell)

        try:
            await asyncio.wrap_future(start_thread(work))
        finally:
            if changed:  # nobody waits for the database, which may stall
                start_thread(partial(self._show, changed))
        return self._reader.calls

    def _fail(self, error: Exception) -> None:
        """Report a failed poll to the waits. A key that is refused twice in a row ends them.

        The first time, somebody may be replacing it.
        """
        refused = (InvalidApiKey, Forbidden)
        is_final = isinstance(error, refused) and isinstance(self._failure, refused)
        if self._failure is None:
            log.warning("A poll failed; the waits continue", exc_info=error)
        self._failure, self._not_before = error, time.monotonic() + RETRY_SECONDS
        for wait in self.waits:
            if is_final:
                wait.finish(WaitEnd("error", wait.seen, str(error)))
            else:
                wait.tell(f"A poll failed; the wait continues: {error}")


def _shows_more(read: Transfer, seen: Transfer | None) -> bool:
    """Return whether somebody has picked a transfer up, or it has ended, since it was seen."""
    before = (seen.status, len(seen.picked_up)) if seen else (PENDING, 0)
    return (read.status, len(read.picked_up)) != before
