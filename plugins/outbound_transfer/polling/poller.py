"""The shared poll of one connection: polls every transfer that this process waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outbound_transfer.client import AsyncClient, Settings
from outbound_transfer.client.drivers import drive_async
from outbound_transfer.client.retry import POLL_RETRY_POLICY, RetryDetails
from outbound_transfer.client.traces import NO_PARENT, trace
from outbound_transfer.polling.hints import Hints
from outbound_transfer.polling.rate_limiter import RateLimiter
from outbound_transfer.polling.read_backoff import MAX_MISSING_BACKOFF, ReadBackoff
from outbound_transfer.polling.schedule import MIN_INTERVAL, Now, PollTimes, now
from outbound_transfer.polling.waiters import FINAL_POLL_GRACE, Waiter, WaiterRegistry
from outbound_transfer.polling.watcher import CompletionWatcher
from outbound_transfer.protocol import listings, status_scan
from outbound_transfer.protocol.errors import (
    CallError,
    Forbidden,
    InvalidApiKey,
    InvalidSettings,
    RateLimited,
    ServiceError,
    TimedOut,
)
from outbound_transfer.protocol.messages import Call, Flow, Operation
from outbound_transfer.protocol.models import COMPLETE, Transfer, UnreadableRow

if TYPE_CHECKING:
    from outbound_transfer.cluster.poll import SharedPages

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which waiters may join before the first poll; also the interval of updates within a long poll.
COALESCE_SECONDS: Final = 2.0

#: Seconds from a failed poll to the next one, doubled each time.
MIN_BACKOFF: Final = 2.0
MAX_BACKOFF: Final = 120.0

#: Maximum seconds for which one Retry-After header may stop all polls. The service may then send another one.
MAX_RETRY_AFTER: Final = 300.0

#: Seconds for which Airflow may look for the connection, and a call may go on without a response, its retries and the
#: connection's timeout aside. Longer, and the poll is given up.
MAX_SILENCE: Final = 300.0

#: Maximum number of unreadable rows that one poller logs.
MAX_LOGGED_PROBLEMS: Final = 100

#: Maximum number of a watcher's missing transfers that one poll reads again.
MAX_MISSING_READS: Final = 20

#: Seconds between two looks for new events.
HINT_INTERVAL: Final = 5.0

#: Maximum seconds by which a page that another process has read may be older than the poll that uses it.
MAX_PAGE_AGE: Final = 20.0

#: Errors that waiting does not resolve: the key or the connection is invalid.
PERMANENT_ERRORS: Final = (InvalidApiKey, Forbidden, InvalidSettings)


@dataclass(frozen=True)
class PollUpdate:
    """Signals that a :class:`Waiter` or :class:`CompletionWatcher` may have changed. Each subscriber checks its own.

    :ivar warning: why polls fail, set on the first of several failures in a row only.
    :ivar on_stored: awaited after events that follow from this update are stored.
    """

    warning: str = ""
    on_stored: list[Callable[[], Awaitable[None]]] = field(default_factory=list)


@asynccontextmanager
async def _giving_up_after(seconds: float) -> AsyncIterator[None]:
    """:raises TimedOut: the block takes longer, in real time."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimedOut(f"there was no response for {seconds:.0f} seconds") from None


class SharedPoller:
    """Polls the transfers of all waiters and watchers of one connection, as few requests as possible.

    Processes that share a database poll at the same times, and read each page of a listing once for all
    (:class:`~.cluster.poll.SharedPages`).

    No response of the service and no failure to reach it raises an exception: waiters are updated, and polling
    continues.

    :param registry: the waiters and watchers. They may join and leave at any time.
    :param settings: returns the connection's settings. Called before every poll, as the key may be replaced.
    :param clock: returns the current time.
    :param sleep: replaces ``asyncio.sleep`` in tests.
    :param new_client: creates a client from settings and the options of :class:`~outbound_transfer.client.AsyncClient`.
    :param on_poll: called with the duration of each poll in seconds; must not raise.
    :param find_shared: returns what this process shares with the others that have the key; None if there is nothing.
    """

    def __init__(
        self,
        registry: WaiterRegistry,
        settings: Callable[[], Awaitable[Settings]],
        *,
        clock: Callable[[], Now] = now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_client: Callable[..., AsyncClient] = AsyncClient,
        on_poll: Callable[[float], object] | None = None,
        find_shared: Callable[[Settings], Awaitable[SharedPages | None]] | None = None,
    ) -> None:
        self._registry, self._settings, self._clock, self._sleep = registry, settings, clock, sleep
        self._new_client, self._on_poll, self._find_shared = new_client, on_poll, find_shared
        self._shared: SharedPages | None = None
        self._needs_new_reads = False
        self._hints = Hints()
        self._is_hinted = False
        self._client: AsyncClient | None = None
        self._rate_limiter = RateLimiter()
        self._scan_progress = status_scan.ScanProgress()
        self._scan_result = listings.ScanResult()
        self._read_backoff = ReadBackoff()
        self._missing_backoff = ReadBackoff(MAX_MISSING_BACKOFF)
        self._logged: set[str] = set()
        self._watcher_queue: dict[str, Transfer] = {}
        # Monotonic seconds.
        self._schedule_origin = self._monotonic() + COALESCE_SECONDS
        self._not_before = self._retry_after_until = self._poll_started = self._schedule_origin
        self._page_age = MAX_PAGE_AGE
        self._failures = 0

    async def updates(self) -> AsyncGenerator[PollUpdate, None]:
        """Poll until the generator is closed; yield an update whenever a waiter or watcher may have changed."""
        reading_events = asyncio.ensure_future(self._keep_reading_events()) if self._find_shared else None
        try:
            while True:
                if (left := self._next_poll_at() - self._monotonic()) > 0:
                    # Short sleeps: a waiter that joins may be due earlier, and the system clock may be set.
                    await self._sleep(min(left, COALESCE_SECONDS))
                else:
                    async for update in self._poll_once():
                        yield update
                if self._registry.expire_overdue(self._clock()):
                    yield PollUpdate()
        finally:
            if reading_events:
                reading_events.cancel()
                await asyncio.gather(reading_events, return_exceptions=True)
            await self._disconnect()

    def _next_poll_at(self) -> float:
        """Return when the next poll starts, in monotonic seconds."""
        now = self._clock()
        not_before = self._not_before
        if self._registry.check_deadlines(now):  # our own backoff does not delay a final poll
            not_before = min(not_before, self._poll_started + FINAL_POLL_GRACE)
        due = min(self._registry.next_due_at(self._times, now), self._hints.due_at)
        return max(due, not_before, self._retry_after_until)

    async def _poll_once(self) -> AsyncIterator[PollUpdate]:
        poll_start = self._clock()
        self._registry.check_deadlines(poll_start)
        if self._shared:  # a page that the poll before has used shows nothing new
            self._page_age = min((poll_start.monotonic - self._poll_started) / 2, MAX_PAGE_AGE)
        self._poll_started, self._not_before = poll_start.monotonic, poll_start.monotonic + MIN_INTERVAL
        fetching = asyncio.ensure_future(self._fetch(poll_start))
        try:
            while not fetching.done():
                await asyncio.wait({fetching}, timeout=COALESCE_SECONDS)
                if self._has_updates(poll_start):
                    yield PollUpdate()
            warning = await self._handle_result(fetching, poll_start)
            self._update_watchers()
            if self._shared:  # from now on, all processes poll at the same times
                self._schedule_origin = poll_start.monotonic - poll_start.wall
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)  # before the client is closed
            if self._on_poll:
                self._on_poll(self._monotonic() - poll_start.monotonic)
        if warning or self._registry.pop_has_updates():
            yield PollUpdate(warning)

    async def _fetch(self, poll_start: Now) -> None:
        """Request everything that is due. Responses are added to ``_scan_result`` as they arrive."""
        # Not within the span of the trigger that came first: it polls for all.
        with trace("poll", parent=NO_PARENT, waiters=len(list(self._registry))):
            await self._connect()
            await self._fetch_due(poll_start)

    async def _fetch_due(self, poll_start: Now) -> None:
        self._scan_result.has_response = self._scan_result.is_incomplete = False
        watchers = [
            watcher for watcher in self._registry.watchers if watcher.due_at(self._times) <= poll_start.monotonic
        ]
        scanned = [watcher for watcher in watchers if watcher.scan_due_at(self._times) <= poll_start.monotonic]
        wanted = self._wanted(scanned, poll_start)
        self._needs_new_reads = any(waiter.needs_new_read(poll_start) for waiter in self._registry)
        scan_error, failed_alone = await self._scan_statuses(wanted, poll_start)
        self._dispatch_results(poll_start)
        if not scan_error and not self._scan_result.is_incomplete:
            for watcher in scanned:
                watcher.scanned_at = poll_start.monotonic
        try:
            await self._scan_for_watchers(watchers, poll_start)
        except (*PERMANENT_ERRORS, RateLimited):
            raise
        except CallError as error:  # only the watchers' requests failed
            if not self._scan_result.has_response:
                raise
            self._log_once(
                "listing", f"Could not list the newest transfers; watchers try again with the next poll: {error}"
            )
            for watcher in watchers:
                watcher.polled_at = poll_start.monotonic
        if scan_error and not self._scan_result.has_response:
            raise scan_error
        self._scan_result.failed |= failed_alone  # the service responds, so these transfers caused the errors
        await self._read_named(wanted, poll_start)

    async def _scan_statuses(
        self, wanted: status_scan.Wanted, poll_start: Now
    ) -> tuple[CallError | None, Mapping[str, CallError]]:
        """Request the wanted transfers.

        :return: the error if no transfer could be read at all, and the transfers whose reads failed with it: the cause
            may be the service or these transfers.
        """
        failures = self._missing_backoff.failures | self._read_backoff.failures
        try:
            await self._run(
                status_scan.scan_statuses(
                    wanted, self._scan_progress, self._scan_result, failures, poll_start.monotonic
                ),
                is_shared=not self._needs_new_reads,
            )
        except (*PERMANENT_ERRORS, RateLimited):
            raise
        except CallError as error:
            return error, self._scan_result.failed_alone
        return None, {}

    def _wanted(self, watchers: Iterable[CompletionWatcher], poll_start: Now) -> status_scan.Wanted:
        """Return the transfers that are waited for, and which of them are due.

        :param watchers: those whose outstanding transfers are due.
        """
        waited_for: dict[str, float] = {}
        for watcher in self._registry.watchers:
            waited_for |= watcher.outstanding
        times = self._times
        for waiter in self._registry:
            waited_for[waiter.transfer_id] = waiter.sent_at or waited_for.get(waiter.transfer_id, 0.0)
        self._read_backoff.retain(waited_for)
        self._missing_backoff.retain(waited_for)
        watched, urgent = set[str](), set[str]()
        for watcher in watchers:
            readable = self._readable(watcher.outstanding, poll_start)
            watched |= readable - watcher.missing.keys()
            urgent |= self._missing_due(readable & watcher.missing.keys(), poll_start)
        unread = {one for one in watched if not waited_for[one]}
        awaited = set[str]()
        for waiter in self._registry:
            if waiter.due_at(times, poll_start) > poll_start.monotonic:
                continue
            if self._is_backed_off(waiter, poll_start):
                waiter.polled_at = poll_start
                continue
            awaited.add(waiter.transfer_id)
            if waiter.is_urgent(poll_start):
                urgent.add(waiter.transfer_id)
            elif not waiter.sent_at:
                unread.add(waiter.transfer_id)
        due = awaited | watched | urgent
        return status_scan.Wanted(waited_for, due, urgent, unread, may_expire=bool(watched))

    async def _read_named(self, wanted: status_scan.Wanted, poll_start: Now) -> None:
        """Request what events name. That this fails says nothing about other transfers: full polls find that out."""
        self._dispatch_results(poll_start)
        now = self._clock()
        named = self._hints.take(partial(self._is_readable, now), now.monotonic)
        if not named:
            return
        self._is_hinted = True
        try:
            await self._run(status_scan.scan_named(named, wanted, self._scan_progress, self._scan_result))
        except CallError as error:
            log.info("Could not read a transfer that an event names; full polls do: %s", error)
            self._hints.back_off(self._monotonic())
            if isinstance(error, RateLimited):
                self._retry_after_until = self._monotonic() + min(error.retry_after or 0.0, MAX_RETRY_AFTER)
        finally:
            self._dispatch_results(now)
            self._is_hinted = False

    def _is_readable(self, now: Now, transfer_id: str) -> bool:
        backoffs = (self._read_backoff, self._missing_backoff)
        return self._registry.is_polled(transfer_id) and not any(
            one.is_backed_off(transfer_id, now.monotonic) for one in backoffs
        )

    def _readable(self, transfer_ids: Iterable[str], poll_start: Now) -> set[str]:
        return {one for one in transfer_ids if not self._read_backoff.is_backed_off(one, poll_start.monotonic)}

    def _missing_due(self, missing: Iterable[str], poll_start: Now) -> set[str]:
        """Return the missing transfers to read again: those that were not read for longest."""
        due = [one for one in missing if not self._missing_backoff.is_backed_off(one, poll_start.monotonic)]
        due.sort(key=lambda one: (self._missing_backoff.last_failure_at(one), one))
        return set(due[:MAX_MISSING_READS])

    def _is_backed_off(self, waiter: Waiter, poll_start: Now) -> bool:
        return poll_start.monotonic < waiter.overdue_since and self._read_backoff.is_backed_off(
            waiter.transfer_id, poll_start.monotonic
        )

    async def _scan_for_watchers(self, watchers: list[CompletionWatcher], poll_start: Now) -> None:
        """List transfers for the watchers."""
        if uninitialized := [watcher for watcher in watchers if watcher.is_new]:
            newest, outstanding = await self._run(listings.list_outstanding(self._scan_result))
            for watcher in uninitialized:
                watcher.initialize(newest, outstanding, poll_start.wall)
        if initialized := [watcher for watcher in watchers if watcher not in uninitialized]:
            known = frozenset.intersection(*(watcher.known for watcher in initialized))
            since = min(watcher.since for watcher in initialized)
            newest = await self._run(listings.list_sent_since(since, known, self._scan_result))
            self._update_watchers()
            for watcher in initialized:
                watcher.update_from_listing(newest, poll_start.wall)
        if not self._scan_result.is_incomplete:
            for watcher in watchers:
                watcher.polled_at = poll_start.monotonic

    async def _handle_result(self, fetching: asyncio.Future[None], poll_start: Now) -> str:
        """Handle how a poll finished.

        :return: a warning for all subscribers. Empty if the poll succeeded, or failed like the one before.
        """
        try:
            await fetching
        except PERMANENT_ERRORS as error:
            if not await self._is_outdated():
                self._back_off(MAX_BACKOFF)
                self._registry.fail_all(str(error))
                return f"Polling failed permanently: {error}"
        except Exception as error:  # no failure of a poll finishes a waiter
            retry_after = error.retry_after if isinstance(error, ServiceError) else None
            self._back_off()
            self._retry_after_until = self._monotonic() + min(retry_after or 0.0, MAX_RETRY_AFTER)
            self._registry.record_failed_poll(poll_start)
            if self._failures == 1:
                log.warning("Poll failed; waiters keep waiting", exc_info=error)
                return f"Poll failed; the wait continues: {error}"
        else:
            if self._scan_result.has_response:  # otherwise no request was due
                self._failures = 0
        return ""

    def _back_off(self, min_delay: float = 0.0) -> None:
        delay = min(MIN_BACKOFF * 2**self._failures, MAX_BACKOFF)
        self._failures = min(self._failures + 1, 10)
        self._not_before = self._monotonic() + max(delay, min_delay)

    def _dispatch_results(self, poll_start: Now) -> None:
        """Update waiters with the results since the last call."""
        found = self._scan_result.drain()
        self._record_pickups(found.transfers.values(), poll_start)
        self._registry.update(found.transfers.values(), poll_start)
        self._registry.presume_outstanding(found.presumed, poll_start)
        self._watcher_queue |= found.transfers
        self._registry.mark_missing(found.missing, poll_start)
        self._registry.record_read_errors(found.failed, poll_start)
        self._read_backoff.forget(found.transfers)
        self._read_backoff.record_failure(found.failed, self._monotonic())
        self._missing_backoff.forget(found.transfers)
        self._missing_backoff.record_failure(found.missing, self._monotonic())
        self._read_backoff.deprioritize(found.failed_alone, self._monotonic())
        self._log_unreadable_rows(found.unreadable)

    def _record_pickups(self, transfers: Iterable[Transfer], poll_start: Now) -> None:
        for transfer in transfers:
            if transfer.status == COMPLETE and self._registry.was_outstanding(transfer.id):
                self._hints.record_pickup(transfer.id, self._monotonic(), is_hinted=self._is_hinted)
        read_since = poll_start.monotonic - (0 if self._is_hinted else 3 * MAX_PAGE_AGE)  # a page may be older
        self._hints.forget((transfer.id for transfer in transfers), read_since)

    def _update_watchers(self) -> None:
        """Update watchers with all results of the poll."""
        shown, self._watcher_queue = self._watcher_queue, {}
        self._registry.update_watchers(shown.values())

    def _log_unreadable_rows(self, rows: Iterable[UnreadableRow]) -> None:
        for row in rows:
            self._log_once(
                row.id or row.reason, f"Could not read a row of the listing, transfer '{row.id or '?'}': {row.reason}"
            )

    def _log_once(self, key: str, message: str) -> None:
        if key not in self._logged and len(self._logged) < MAX_LOGGED_PROBLEMS:
            self._logged.add(key)
            log.warning("%.500s", message)

    def _has_updates(self, poll_start: Now) -> bool:
        self._dispatch_results(poll_start)
        return self._registry.pop_has_updates()

    async def _run(self, flow: Flow[T], *, is_shared: bool = False) -> T:
        return await drive_async(flow, self._perform_shared if is_shared and self._shared else self._perform)

    async def _perform_shared(self, call: Call[Any]) -> Any:
        if self._shared is None or call.operation is not Operation.LIST:
            return await self._perform(call)
        return await self._shared.read(call, self._perform, self._sleep, self._max_page_age)

    def _max_page_age(self) -> float:
        return self._page_age + self._monotonic() - self._poll_started

    async def _perform(self, call: Call[T]) -> T:
        if delay := self._rate_limiter.reserve(self._monotonic()):
            await self._sleep(delay)
        assert self._client is not None
        async with _giving_up_after(self._client.settings.timeout + POLL_RETRY_POLICY.timeout + MAX_SILENCE):
            return await self._client.perform(call)

    def _on_retry(self, retry: RetryDetails) -> None:
        log.info("Retrying a request of the poll in %.0f s: %s", retry.wait_for, retry.caused_by)
        if isinstance(retry.caused_by, RateLimited):
            self._rate_limiter.record_refusal(self._monotonic())
        self._rate_limiter.reserve(self._monotonic())  # a retry is a request too

    @property
    def _times(self) -> PollTimes:
        return PollTimes(self._schedule_origin, self._hints.rare_interval(self._monotonic()))

    def _monotonic(self) -> float:
        return self._clock().monotonic

    async def _connect(self) -> None:
        async with _giving_up_after(MAX_SILENCE):
            settings = await self._settings()
        if self._client is None or self._client.settings != settings:
            await self._disconnect()
            self._missing_backoff = ReadBackoff(MAX_MISSING_BACKOFF)  # a new key may see these transfers
            self._hints = Hints()
            self._client = self._new_client(
                settings,
                policy=POLL_RETRY_POLICY,
                sleep=self._sleep,
                clock=self._monotonic,
                on_retry=self._on_retry,
            )
        if self._find_shared and not self._shared:
            self._shared = await self._find_shared(settings)

    async def _keep_reading_events(self) -> None:
        while True:
            await self._sleep(HINT_INTERVAL)
            if self._shared:
                values = await self._shared.read_events()
                self._hints.update(values, self._registry.is_polled, self._monotonic())

    async def _is_outdated(self) -> bool:
        """Return whether the connection's settings have changed since the poll started: its key may be a new one."""
        try:
            return self._client is not None and self._client.settings != await self._settings()
        except InvalidSettings:
            return False

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._shared is not None:
            self._shared.leave()
            self._shared = None
