"""One poll for all waits of a connection in an event loop.

A task of the loop decides when to read, and asks Airflow for the connection. A thread of its own reads
(:mod:`.reader`); the waits get each response as it arrives.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.client.errors import CallsStopped, Forbidden, InvalidApiKey
from outbound_transfer.client.models import PENDING, Transfer
from outbound_transfer.delivery.place import find_rows
from outbound_transfer.delivery.shown import show
from outbound_transfer.observability import metrics
from outbound_transfer.store.config import deliveries_conn_id, table_naming
from outbound_transfer.traces import trace
from outbound_transfer.waiting.reader import Reader, SharedPages, start_thread
from outbound_transfer.waiting.wait import Wait, WaitEnd

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.store.deliveries import Deliveries

log = logging.getLogger(__name__)

# Seconds.
TICK: Final = 2.0  # between two checks for due waits; the first comes one later, so that others may join
PACE: Final = 2.5  # of rest after a poll, for each of its calls: most of the key's 60 a minute are for deliveries
RETRY_SECONDS: Final = 30.0  # after which a poll that failed is repeated
READER_LIFE: Final = 3_600.0  # after which a poll is given up, or its knowledge of listings and a failed database
MAX_CLOCK_ERROR: Final = 60.0  # by which a clock is corrected at most
LAST_CHANCE: Final = 180.0  # after its deadline, in which a wait may end with what a last poll reads
MAX_REST: Final = LAST_CHANCE - RETRY_SECONDS
PAGE_LIFE: Final = 0.75  # part of the interval for which a page read by another triggerer is usable

#: By connection and event loop, as ``dag.test()`` runs each trigger in one of its own.
_polls: Final[dict[tuple[str, asyncio.AbstractEventLoop], Poll]] = {}

#: When a loop may poll next, on the monotonic clock, by connection: a rest also binds waits that come after it began.
_not_before: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, defaultdict[str, float]]] = WeakKeyDictionary()


@contextmanager
def join_poll(conn_id: str, wait: Wait, open_client: Callable[[], Client]) -> Iterator[None]:
    """Poll for a wait, with the others of the connection; each poll opens a client, as the key may be replaced."""
    loop = asyncio.get_running_loop()
    poll = _polls.get((conn_id, loop)) or _polls.setdefault((conn_id, loop), Poll(conn_id, open_client))
    poll.waits.add(wait)
    poll.emit_count()
    timer: asyncio.TimerHandle

    def watch(was_over: bool = False) -> None:  # again and again, as somebody may set the clock
        nonlocal timer
        left = wait.deadline - time.time()
        if was_over and left <= 0:  # a last poll has had its time
            wait.finish(WaitEnd("timeout", wait.seen))
        else:
            timer = loop.call_later(left if 0 < left < LAST_CHANCE else LAST_CHANCE, watch, left <= 0)

    watch()
    try:
        yield
    finally:
        timer.cancel()
        poll.waits.discard(wait)
        poll.emit_count()
        if not poll.waits:
            del _polls[conn_id, loop]
            poll.stop()


class Poll:
    """Nothing that the service, Airflow or a database does ends it: it ends with its last wait."""

    def __init__(self, conn_id: str, open_client: Callable[[], Client]) -> None:
        self.waits: set[Wait] = set()
        self._conn_id, self._open_client = conn_id, open_client
        self._client: Client | None = None
        self._settings: Settings | None = None
        self._failure: Exception | None = None
        self._origin, self._reader_until = time.time() + TICK / 2, 0.0
        self._not_before = _not_before.setdefault(asyncio.get_running_loop(), defaultdict(float))
        # Without the context of the first wait, whose log would get what concerns all.
        self._task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._run())

    def stop(self) -> None:
        """End soon: no call waits for a retry, and the next one that finds a transfer is the last one."""
        self._task.cancel()
        if self._client:
            self._client.stop()

    def emit_count(self) -> None:
        metrics.DEFERRED_WAITERS.emit(len(self.waits), conn_id=self._conn_id, triggerer=socket.gethostname())

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
        if due and began >= self._not_before[self._conn_id]:
            try:
                await self._read(await self._open(), sorted(due, key=lambda wait: wait.asked), at)
                self._failure = None
            finally:
                metrics.POLL_DURATION.emit(time.monotonic() - began, conn_id=self._conn_id)
                self.emit_count()  # again: of a triggerer that is gone, the number expires

    async def _open(self) -> Client:
        """Open a client; start over for another key or account, and once an hour."""
        client = self._client = await call_airflow(self._open_client)
        settings = client.settings
        if settings != self._settings or time.monotonic() >= self._reader_until:
            self._rows, pages = await call_airflow(_open_rows), SharedPages()
            if self._rows and deliveries_conn_id():
                key = f"{settings.account} {settings.key_digest}"
                pages = SharedPages(self._rows.database, **table_naming(), key=key)
            self._reader, self._reader_until = Reader(pages), time.monotonic() + READER_LIFE
            self._settings, self._failure = settings, None
        return client

    async def _read(self, client: Client, due: Sequence[Wait], at: float) -> None:
        """Read what the waits wait for, and tell them."""
        loop, changed, waits = asyncio.get_running_loop(), list[Transfer](), defaultdict[str, list[Wait]](list)
        for wait in self.waits:
            waits[wait.transfer_id].append(wait)

        def tell(transfer_id: str, read: Transfer | Exception | None, at: float) -> None:
            if not self.waits:
                raise CallsStopped
            if isinstance(read, Transfer) and any(_shows_more(read, each.seen) for each in waits[transfer_id]):
                changed.append(read)
            ahead = min(max(client.clock_difference or 0.0, -MAX_CLOCK_ERROR), MAX_CLOCK_ERROR)
            for each in waits[transfer_id]:  # one by one: one that cannot be updated holds up no other
                loop.call_soon_threadsafe(each.update, read, at, ahead)

        wanted = {wait.transfer_id: wait.seen for wait in due}
        wanted |= {wait.transfer_id: None for wait in due if wait.must_be_read(at)}
        max_age = PAGE_LIFE * min(wait.interval for wait in due)

        def work() -> None:
            try:
                with client, trace("poll", waiters=len(wanted)):
                    self._reader.read(client, wanted, max_age, tell)
            finally:  # here, as the last call may end after the last wait
                self._not_before[self._conn_id] = time.monotonic() + min(PACE * self._reader.calls, MAX_REST)
                if changed and self._rows:  # nobody waits for the database, which may stall
                    shown, account = {each.id: each for each in changed}, client.settings.account
                    start_thread(partial(show, self._conn_id, lambda: account, shown, self._rows))

        async with asyncio.timeout(READER_LIFE):  # not wait_for(), which loses a cancellation in Python 3.11
            await asyncio.wrap_future(start_thread(work))

    def _fail(self, error: Exception) -> None:
        """Report a failed poll to the waits. A key that is refused twice in a row ends them.

        The first time, somebody may be replacing it.
        """
        is_final = all(isinstance(each, InvalidApiKey | Forbidden) for each in (error, self._failure))
        if self._failure is None:
            log.warning("A poll failed; the waits continue", exc_info=error)
        retry_at = max(self._not_before[self._conn_id], time.monotonic() + RETRY_SECONDS)
        self._failure, self._not_before[self._conn_id] = error, retry_at
        for wait in self.waits:
            if is_final:
                wait.finish(WaitEnd("error", wait.seen, str(error)))
            else:
                wait.tell(f"A poll failed; the wait continues: {str(error) or type(error).__name__}")


def _open_rows() -> Deliveries | None:
    """Return the table of deliveries, which shares its database with the pages; None if it cannot be opened."""
    try:
        return find_rows()
    except Exception as error:
        text = "Triggerers cannot share polls, and the page may show an older state of deliveries: %s: %s"
        log.warning(text, type(error).__name__, error)
        return None


def _shows_more(read: Transfer, seen: Transfer | None) -> bool:
    before = (seen.status, len(seen.picked_up)) if seen else (PENDING, 0)
    return (read.status, len(read.picked_up)) != before
