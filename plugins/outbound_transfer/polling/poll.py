"""The shared poll: looks at every transfer that somebody in this process waits for on one connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from outbound_transfer.client import AsyncClient, Settings
from outbound_transfer.client.drive import drive_async
from outbound_transfer.client.retry import LOOKS
from outbound_transfer.client.retry import Wait as RetryWait
from outbound_transfer.client.settings import InvalidSettings
from outbound_transfer.polling.allowance import Allowance
from outbound_transfer.polling.schedule import SHORTEST_INTERVAL, Now, now
from outbound_transfer.polling.troubled import Troubled
from outbound_transfer.polling.waits import LAST_LOOK, Wait, Waits
from outbound_transfer.polling.watch import Watch
from outbound_transfer.protocol import rounds
from outbound_transfer.protocol.errors import CallError, Forbidden, InvalidApiKey, RateLimited, ServiceError, TimedOut
from outbound_transfer.protocol.exchange import Call, Flow
from outbound_transfer.protocol.models import Transfer, Unreadable
from outbound_transfer.watching import CallWatch

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which others may join before the first look; also between two news of a look that takes long.
SETTLE: Final = 2.0

#: Seconds from one failed look to the next, doubled each time.
SHORTEST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 120.0

#: Seconds at most that one Retry-After may stop all waits; the service may ask for as many again.
LONGEST_ASKED: Final = 300.0

#: Seconds without an answer, beyond the connection's timeout, after which a look is broken off.
LONGEST_SILENCE: Final = 300.0

#: Unreadable rows that are said each by itself in the life of a poll.
MOST_SAID: Final = 100

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
    :param clock: this moment.
    :param sleep: as ``asyncio.sleep``.
    :param conn_id: Airflow's connection, for the metrics.
    :param on_look: told how many seconds each look took; must not raise.
    """

    def __init__(
        self,
        waits: Waits,
        settings: Callable[[], Awaitable[Settings]],
        *,
        clock: Callable[[], Now] = now,
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
        self._troubled = Troubled()
        self._said: set[str] = set()
        self._shown: dict[str, Transfer] = {}
        # All of these in steady seconds.
        self._grid = self._steady() + SETTLE
        self._not_before = self._asked_until = self._began = self._grid
        self._silent_until = 0.0
        self._failures = 0

    async def news(self) -> AsyncIterator[News]:
        """Look for ever; an item whenever there is something for somebody."""
        try:
            while True:
                if (left := self._next() - self._steady()) > 0:
                    # In short sleeps, as somebody may join who is due earlier, and the machine's clock may be set.
                    await self._sleep(min(left, SETTLE))
                else:
                    async for news in self._look():
                        yield news
                if self._waits.give_up(self._clock()):
                    yield News()
        finally:
            await self._disconnect()

    def _next(self) -> float:
        """When to look next."""
        moment = self._clock()
        not_before = self._not_before
        if self._waits.check_deadlines(moment):  # a last look is not kept waiting by pauses of our own
            not_before = min(not_before, self._began + LAST_LOOK)
        return max(self._waits.next_due(self._grid, moment), not_before, self._asked_until)

    async def _look(self) -> AsyncIterator[News]:
        began = self._clock()
        self._waits.check_deadlines(began)
        self._began, self._not_before = began.steady, began.steady + SHORTEST_INTERVAL
        self._not_silent()
        asking = asyncio.ensure_future(self._ask(began))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=SETTLE)
                if self._is_news(began):
                    yield News()
                if self._steady() >= self._silent_until:
                    break
            trouble = await self._outcome(asking, began)
            self._show()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)  # before its connection is closed
            self._on_look(self._steady() - began.steady)
        if trouble or self._waits.have_news():
            yield News(trouble)

    async def _ask(self, began: Now) -> None:
        """Ask the service for all that is due; what it says goes to ``_found`` as it comes."""
        await self._connect()
        self._found.answered = self._found.untried = False
        watches = [watch for watch in self._waits.watches if watch.due(self._grid) <= began.steady]
        wanted = self._wanted(watches, began)
        trouble, in_vain = await self._look_at(wanted)
        self._settle(began)
        try:
            await self._scan(watches, began)
        except (*REFUSALS, RateLimited):
            raise
        except CallError as error:  # of the watches alone, where the waits were answered
            if not self._found.answered:
                raise
            self._say("listing", f"The newest transfers cannot be listed, and the watchers go on: {error}")
            for watch in watches:
                watch.looked = began.steady
        if trouble and not self._found.answered:
            raise trouble
        self._found.troubled |= in_vain  # the service is well, so it was theirs

    async def _look_at(self, wanted: Mapping[str, float]) -> tuple[CallError | None, Mapping[str, CallError]]:
        """Ask for all that is wanted; why nothing could be had, and of what: the service's fault, or theirs."""
        try:
            self._listing = await self._run(rounds.look(wanted, self._listing, self._found, self._troubled.failures))
        except (*REFUSALS, RateLimited):
            raise
        except CallError as error:
            return error, self._found.in_vain
        return None, {}

    def _wanted(self, watches: Iterable[Watch], began: Now) -> dict[str, float]:
        """Whom to look at, with when each was sent."""
        due = [wait for wait in self._waits if wait.due(self._grid, began) <= began.steady]
        outstanding = (one.outstanding for one in self._waits.watches)
        self._troubled.keep({wait.transfer_id for wait in self._waits}.union(*outstanding))
        wanted: dict[str, float] = {}
        for watch in watches:
            wanted |= {one: at for one, at in watch.outstanding.items() if not self._troubled.rests(one, began.steady)}
        for wait in due:
            if self._rests(wait, began):
                wait.looked = began
            else:
                wanted[wait.transfer_id] = wait.sent or wanted.get(wait.transfer_id, 0.0)
        return wanted

    def _rests(self, wait: Wait, began: Now) -> bool:
        return began.steady < wait.overdue and self._troubled.rests(wait.transfer_id, began.steady)

    async def _scan(self, watches: list[Watch], began: Now) -> None:
        """Show the watches which transfers there are."""
        if beginning := [watch for watch in watches if watch.is_new]:
            newest, outstanding = await self._run(rounds.begin(self._found))
            for watch in beginning:
                watch.begin(newest, outstanding, began.wall)
        if going_on := [watch for watch in watches if watch not in beginning]:
            known = frozenset.intersection(*(watch.known for watch in going_on))
            since = min(watch.since for watch in going_on)
            newest = await self._run(rounds.sent_since(since, known, self._found))
            self._show()
            for watch in going_on:
                watch.scan(newest, began.wall)
        if not self._found.untried:
            for watch in watches:
                watch.looked = began.steady

    async def _outcome(self, asking: asyncio.Future[None], began: Now) -> str:
        """What to tell all of a look that has ended; "" where it was well, or as bad as the one before."""
        try:
            if not asking.done():
                raise TimedOut("the service has not answered for minutes")
            await asking
        except REFUSALS as error:
            if not await self._is_outdated():
                self._back_off(LONGEST_PAUSE)
                self._waits.fail(str(error))
                return f"Refused: {error}"
        except Exception as error:  # whatever it is, no wait ends with it
            asked = error.retry_after if isinstance(error, ServiceError) else None
            self._back_off()
            self._asked_until = self._steady() + min(asked or 0.0, LONGEST_ASKED)
            self._waits.look_in_vain(began)
            if self._failures == 1:
                log.warning("A look at the transfers failed; the waits go on", exc_info=error)
                return f"The service cannot be asked just now, and the wait goes on: {error}"
        else:
            if self._found.answered:  # otherwise nothing had to be asked
                self._failures = 0
        return ""

    def _back_off(self, at_least: float = 0.0) -> None:
        pause = min(SHORTEST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 10)
        self._not_before = self._steady() + max(pause, at_least)

    def _settle(self, began: Now) -> None:
        """Hand what was found since the last time to those who wait for it."""
        found = self._found.drain()
        self._waits.see(found.transfers.values(), began)
        self._shown |= found.transfers
        self._waits.lose(found.gone)
        self._waits.miss(found.troubled, began)
        self._troubled.forget(found.transfers)
        self._troubled.note(found.troubled, self._steady())
        self._troubled.put_last(found.in_vain, self._steady())
        self._say_unreadable(found.unreadable)

    def _show(self) -> None:
        """Let the watches have what was found."""
        shown, self._shown = self._shown, {}
        self._waits.show(shown.values())

    def _say_unreadable(self, rows: Iterable[Unreadable]) -> None:
        for row in rows:
            self._say(row.id or row.reason, f"A row of the listing is no transfer: {row.id or '?'}: {row.reason}")

    def _say(self, what: str, message: str) -> None:
        if what not in self._said and len(self._said) < MOST_SAID:
            self._said.add(what)
            log.warning("%.500s", message)

    def _is_news(self, began: Now) -> bool:
        self._settle(began)
        return self._waits.have_news()

    async def _run(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._perform)

    async def _perform(self, call: Call[T]) -> T:
        if wait := self._allowance.take(self._steady()):
            self._not_silent(wait)
            await self._sleep(wait)
        assert self._client is not None
        self._not_silent()
        try:
            return await self._client.perform(call)
        finally:
            self._not_silent()

    def _on_wait(self, wait: RetryWait) -> None:
        log.info("A look at the transfers waits %.0f s: %s", wait.seconds, wait.error)
        self._allowance.take(self._steady())  # a repeat is a request too: the next call waits for it
        self._not_silent(wait.seconds)

    def _not_silent(self, seconds: float = 0.0) -> None:
        """The look goes on, after a wait of so many seconds."""
        timeout = self._client.settings.timeout if self._client else 0.0
        self._silent_until = self._steady() + seconds + timeout + LONGEST_SILENCE

    def _steady(self) -> float:
        return self._clock().steady

    async def _connect(self) -> None:
        settings = await self._settings()
        if self._client is None or self._client.settings != settings:
            await self._disconnect()
            self._client = AsyncClient(
                settings,
                policy=LOOKS,
                sleep=self._sleep,
                clock=self._steady,
                on_wait=self._on_wait,
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
