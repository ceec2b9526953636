"""The shared poll: looks at every transfer that somebody in this process waits for on one connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from outbound_transfer.client import AsyncClient, RetryPolicy, Settings
from outbound_transfer.client.drive import drive_async
from outbound_transfer.client.retry import Wait as RetryWait
from outbound_transfer.client.settings import InvalidSettings
from outbound_transfer.polling.allowance import Allowance
from outbound_transfer.polling.schedule import SHORTEST_INTERVAL
from outbound_transfer.polling.waits import Waits
from outbound_transfer.polling.watch import OVERLAP
from outbound_transfer.protocol import rounds
from outbound_transfer.protocol.errors import Forbidden, InvalidApiKey, ServiceError
from outbound_transfer.protocol.exchange import Call, Flow
from outbound_transfer.watching import CallWatch

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which others may join before the first look; also between two news of a look that takes long.
SETTLE: Final = 2.0

#: Seconds from one failed look to the next, doubled each time.
SHORTEST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 120.0

#: A call's retries within a look: few, as the next look is a retry too.
RETRIES: Final = RetryPolicy(attempts=3, longest_backoff=10.0, patience=300.0)

#: What waiting does not mend: the key, or the connection, is no good.
REFUSALS: Final = (InvalidApiKey, Forbidden, InvalidSettings)


@dataclass(frozen=True)
class News:
    """Tells those who wait that something has changed; each then looks at its own ``Wait`` or ``Watch``.

    :ivar trouble: why the service cannot be asked just now, said once each time it begins.
    :ivar once_told: awaited when what was derived from this news is safely stored.
    """

    trouble: str = ""
    once_told: list[Callable[[], Awaitable[None]]] = field(default_factory=list)


class Poll:
    """One poll. What the service does never makes it raise: the waits are told, and it goes on.

    :param waits: those who wait; they come and go at any time.
    :param settings: gives the connection's settings, anew for every look, as its key may be changed meanwhile.
    :param clock: seconds since the epoch.
    :param sleep: as ``asyncio.sleep``.
    :param conn_id: Airflow's connection, for the metrics.
    :param on_look: told how many seconds each look took; must not raise.
    """

    def __init__(
        self,
        waits: Waits,
        settings: Callable[[], Awaitable[Settings]],
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        conn_id: str = "",
        on_look: Callable[[float], object] = id,
    ) -> None:
        self._waits, self._settings, self._clock, self._sleep = waits, settings, clock, sleep
        self._conn_id, self._on_look = conn_id, on_look
        self._client: AsyncClient | None = None
        self._allowance = Allowance()
        self._listing = rounds.Listing()
        self._found = rounds.Found()
        self._grid = clock() + SETTLE
        self._not_before = self._grid
        self._failures = 0

    async def news(self) -> AsyncIterator[News]:
        """Look for ever; an item whenever there is something for somebody."""
        due = self._waits.next_due(self._grid)
        try:
            while True:
                due = min(due, self._waits.next_due_of_newcomers(self._grid))
                if (left := max(due, self._not_before) - self._clock()) > 0:
                    # In short sleeps, as somebody may join who is due earlier.
                    await self._sleep(min(left, SETTLE))
                else:
                    async for news in self._look():
                        yield news
                    due = self._waits.next_due(self._grid)
                if self._failures and self._waits.give_up(self._clock()):
                    yield News()
        finally:
            await self._disconnect()

    async def _look(self) -> AsyncIterator[News]:
        began = self._clock()
        self._not_before = began + SHORTEST_INTERVAL
        asking = asyncio.ensure_future(self._ask(began))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=SETTLE)
                if self._is_news(began):
                    yield News()
            trouble = await self._outcome(asking)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)  # before its connection is closed
            self._on_look(self._clock() - began)
        if trouble:
            yield News(trouble)

    async def _ask(self, began: float) -> None:
        """Ask the service for all that is due; what it says goes to ``_found`` as it comes."""
        await self._connect()
        watches = [watch for watch in self._waits.watches if watch.due(self._grid) <= began]
        if any(watch.is_new for watch in watches):
            await self._run(rounds.begin(OVERLAP, self._found))
        if known := [watch.since for watch in watches if not watch.is_new]:
            await self._run(rounds.sent_since(min(known), self._found))
        wanted = {wait.transfer_id: wait.sent for wait in self._waits if wait.due(self._grid) <= began}
        for watch in watches:
            wanted |= watch.outstanding
        self._listing = await self._run(rounds.look(wanted, self._listing, self._found))
        self._settle(began)
        for watch in watches:
            watch.looked_at_all(began)

    async def _outcome(self, asking: asyncio.Future[None]) -> str:
        """What to tell all of a look that has ended; "" where it was well, or as bad as the one before."""
        try:
            await asking
        except REFUSALS as error:
            if not await self._is_outdated():
                self._back_off(LONGEST_PAUSE)
                self._waits.fail(str(error))
                return f"Refused: {error}"
        except Exception as error:  # whatever it is, no wait ends with it
            asked = error.retry_after if isinstance(error, ServiceError) else None
            self._back_off(asked or 0.0)
            if self._failures == 1:
                log.warning("A look at the transfers failed; the waits go on", exc_info=error)
                return f"The service cannot be asked just now, and the wait goes on: {error}"
        else:
            self._failures = 0
        return ""

    def _back_off(self, at_least: float) -> None:
        pause = min(SHORTEST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 10)
        self._not_before = self._clock() + max(pause, at_least)

    def _settle(self, began: float) -> None:
        """Hand what was found since the last time to those who wait for it."""
        found = self._found.drain()
        self._waits.see(found.transfers.values(), began)
        self._waits.lose(found.gone)

    def _is_news(self, began: float) -> bool:
        self._settle(began)
        return self._waits.give_up(self._clock()) or self._waits.have_news()

    async def _run(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._perform)

    async def _perform(self, call: Call[T]) -> T:
        if wait := self._allowance.take(self._clock()):
            await self._sleep(wait)
        assert self._client is not None
        return await self._client.perform(call)

    async def _connect(self) -> None:
        settings = await self._settings()
        if self._client is None or self._client.settings != settings:
            await self._disconnect()
            self._client = AsyncClient(
                settings,
                policy=RETRIES,
                sleep=self._sleep,
                clock=self._clock,
                on_wait=_log_wait,
                observer=CallWatch(self._conn_id, settings.base_url),
            )

    async def _is_outdated(self) -> bool:
        """Whether the connection has changed since the look began: a key that was replaced is refused by right."""
        try:
            return self._client is not None and self._client.settings != await self._settings()
        except InvalidSettings:
            return False

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


def _log_wait(wait: RetryWait) -> None:
    log.info("A look at the transfers waits %.0f s: %s", wait.seconds, wait.error)
