"""One poll for all waits of a connection in an event loop.

A task of the loop decides when to read, asks Airflow for the connection, and ends waits at their deadlines. A thread of
its own reads (:mod:`.reader`); what it has read reaches the waits after each response.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.client.traces import trace
from outbound_transfer.protocol.errors import (
    CallsStopped,
    Forbidden,
    InvalidApiKey,
    InvalidDelivery,
    NotFound,
    ServiceError,
)
from outbound_transfer.waiting.pages import find_pages
from outbound_transfer.waiting.reader import News, Reader, Wanted
from outbound_transfer.waiting.wait import Now, Wait, now

if TYPE_CHECKING:
    from outbound_transfer.client import Client, Settings

log = logging.getLogger(__name__)

#: Seconds for which waits may join before the first poll, and for which a later one may be overlooked.
JOIN_SECONDS: Final = 2.0
TICK: Final = 5.0

#: Seconds from one poll to the next for each call of the first: most of the key's 60 a minute are left to deliveries.
PACE: Final = 2.5

#: Seconds after which a poll that failed is repeated, and the most that it waits because of Retry-After.
RETRY_SECONDS: Final = 30.0
MAX_RETRY_AFTER: Final = 300.0

#: Part of the interval for which a page that another triggerer has read is of use.
PAGE_LIFE: Final = 0.75

#: By event loop, as ``dag.test()`` runs each trigger in one of its own, and by connection.
_polls: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Poll]]] = WeakKeyDictionary()


@contextmanager
def join_poll(conn_id: str, wait: Wait, new_poll: Callable[[], Poll]) -> Iterator[Poll]:
    """Poll for a wait while the block runs, together with the others of the connection."""
    polls = _polls.setdefault(asyncio.get_running_loop(), {})
    poll = polls.get(conn_id) or polls.setdefault(conn_id, new_poll())
    poll.add(wait)
    try:
        yield poll
    finally:
        if poll.remove(wait) and polls.get(conn_id) is poll:
            del polls[conn_id]


class Poll:
    """Nothing that the service, Airflow or a database does ends it: it ends with its last wait.

    :param read_settings: reads the connection, before each poll, as the key may be replaced.
    :param new_client: opens a client, in the thread; it is kept while the settings stay.
    :param on_poll: called with the seconds that a poll took.
    """

    def __init__(
        self,
        read_settings: Callable[[], Settings],
        new_client: Callable[[Settings], Client],
        on_poll: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._read_settings, self._new_client, self._on_poll = read_settings, new_client, on_poll
        self._waits: dict[str, list[Wait]] = {}
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._reader: Reader | None = None
        self._origin = self._not_before = time.monotonic() + JOIN_SECONDS
        self._has_failed = self._is_stopped = False
        self._in_use = threading.Lock()

    async def account(self) -> str:
        """Return the account's name, once a poll has read the connection."""
        return self._reader.client.settings.account if self._reader else ""

    def add(self, wait: Wait) -> None:
        self._waits.setdefault(wait.transfer_id, []).append(wait)
        if self._task is None:
            # Without the context of the first wait, whose log would get what concerns all.
            self._task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._run())

    def remove(self, wait: Wait) -> bool:
        """Forget a wait; stop, and return True, if it was the last one."""
        others = self._waits.get(wait.transfer_id, [])
        others.remove(wait)
        if not others:
            del self._waits[wait.transfer_id]
        if self._waits:
            return False
        self._is_stopped = True
        for task in filter(None, (self._task, self._reading)):
            task.cancel()
        if self._reader:
            self._reader.client.stop()
        with suppress(Exception):  # the next wait of the connection must not join a poll that has stopped
            self._close_if_stopped()
        return True

    def _unended(self) -> list[Wait]:
        return [wait for waits in self._waits.values() for wait in waits if wait.end is None]

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except Exception:
                self._log("The poll failed; the waits continue")
                await asyncio.sleep(TICK)

    async def _step(self) -> None:
        """Start a poll if one is due; else wait a little."""
        at = now()
        for wait in self._unended():
            wait.check_deadline(at)
        if self._reading and not self._reading.done():
            await asyncio.wait({self._reading}, timeout=TICK)
            return
        due_at = min((wait.due_at(self._origin, at) for wait in self._unended()), default=inf)
        left = max(due_at, self._not_before) - at.monotonic
        if left > 0:
            await asyncio.sleep(min(left, TICK))
        else:
            self._reading = asyncio.get_running_loop().create_task(self._poll(at))

    async def _poll(self, began: Now) -> None:
        settings, pause = None, 0.0
        try:
            settings = await call_airflow(self._read_settings)
            await self._read(settings, began)
            self._has_failed = False
        except Exception as error:
            pause = RETRY_SECONDS
            with suppress(Exception):  # Airflow does not respond, either
                pause = await self._fail(error, settings)
        finally:
            calls, took = (self._reader.calls if self._reader else 0), time.monotonic() - began.monotonic
            self._not_before = max(began.monotonic + max(PACE * calls, 1.0), time.monotonic() + pause)
            self._on_poll(took)

    async def _read(self, settings: Settings, began: Now) -> None:
        due = [wait for wait in self._unended() if wait.due_at(self._origin, began) <= began.monotonic]
        due.sort(key=lambda wait: wait.asked.monotonic)
        wanted: dict[str, Wanted] = {}
        for wait in due:
            row, must_be_read = wanted.get(wait.transfer_id, (None, False))
            wanted[wait.transfer_id] = Wanted(row or wait.row, must_be_read or wait.must_be_read(began))
        max_age = PAGE_LIFE * min((wait.interval for wait in due), default=0.0)
        is_new = self._reader is None or self._reader.client.settings != settings
        pages = await call_airflow(partial(find_pages, settings)) if is_new else None
        loop = asyncio.get_running_loop()

        def tell(news: News) -> None:
            if self._is_stopped:
                raise CallsStopped
            loop.call_soon_threadsafe(self._apply, news)

        def read() -> None:
            try:
                with self._in_use, trace("poll", waiters=len(wanted)):
                    if is_new:
                        self._close()
                        self._reader = Reader(self._new_client(settings), pages)
                    assert self._reader is not None
                    if not self._is_stopped:
                        self._reader.read(wanted, began, max_age, tell)
            finally:
                self._close_if_stopped()

        await in_thread(read)

    def _apply(self, news: News) -> None:
        ahead = self._reader.client.clock_ahead if self._reader else 0.0
        for transfer in news.transfers:
            self._change(transfer.id, Wait.update, transfer, news.at, ahead)
        for transfer_id, row in news.outstanding.items():
            self._change(transfer_id, Wait.show, row, news.at, ahead)
        for transfer_id, error in news.errors.items():
            if isinstance(error, NotFound | InvalidDelivery):
                self._change(transfer_id, Wait.finish, "error", str(error))
            else:
                self._change(transfer_id, Wait.fail, error, news.at)

    def _change(self, transfer_id: str, change: Callable[..., None], *arguments: Any) -> None:
        for wait in self._waits.get(transfer_id, ()):
            if wait.end is None:
                try:
                    change(wait, *arguments)
                except Exception:  # one that cannot be changed holds up no other
                    self._log(f"The wait for transfer '{transfer_id}' was not updated; it continues")

    async def _fail(self, error: Exception, settings: Settings | None) -> float:
        """Handle what a poll has raised; return the seconds for which the next one waits."""
        if isinstance(error, InvalidApiKey | Forbidden):
            if settings != await call_airflow(self._read_settings):  # the key was replaced meanwhile
                return 0.0
            for wait in self._unended():
                wait.finish("error", str(error))
        elif not self._has_failed:
            self._log("A poll failed; the waits continue")
            for wait in self._unended():
                wait.warn(f"A poll failed; the wait continues: {error}")
        retry_after = error.retry_after if isinstance(error, ServiceError) else None
        return max(RETRY_SECONDS, min(retry_after or 0.0, MAX_RETRY_AFTER))

    def _log(self, message: str) -> None:
        """Log the current exception; of several failures in a row, the first."""
        if not self._has_failed:
            log.warning("%s", message, exc_info=True)
        self._has_failed = True

    def _close_if_stopped(self) -> None:
        """Close the client, unless the thread is using it, which then does the same."""
        if self._is_stopped and self._in_use.acquire(blocking=False):
            self._close()
            self._in_use.release()

    def _close(self) -> None:
        if self._reader:
            self._reader.client.close()


def in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run a function in a thread that keeps neither the loop nor the process from ending."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def end(conclude: Callable[[Any], None], result: Any) -> None:
        if not future.done():
            conclude(result)

    def run() -> None:
        try:
            conclusion = future.set_result, work()
        except Exception as error:
            conclusion = future.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end, *conclusion)

    threading.Thread(target=run, name="outbound-transfer-poll", daemon=True).start()
    return future
