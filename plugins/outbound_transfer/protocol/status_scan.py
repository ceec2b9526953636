"""Reads the statuses of many transfers with few requests.

A transfer is *outstanding* while it is listed as ``pending`` or ``partial``; pages of 100 show those. A transfer that
is not listed has finished, was skipped because rows shifted while paging (service-api.md, R28), or is never listed (a
draft, status ``unknown``). It is fetched by itself or, if many are missing, found on a page of a terminal status.

Where many are outstanding, few of them have finished since the last scan, and the pages of the terminal statuses show
these with fewer requests. What those pages do not show is presumed to be outstanding, and the listing of outstanding
transfers is read in parts, a few pages in each scan.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from msgspec import structs

from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import (
    CallError,
    Forbidden,
    InvalidApiKey,
    InvalidDelivery,
    NotFound,
    RateLimited,
)
from outbound_transfer.protocol.listings import ScanResult, page_through
from outbound_transfer.protocol.messages import Call, Flow
from outbound_transfer.protocol.models import (
    COMPLETE,
    EXPIRED,
    PARTIAL,
    PENDING,
)
from outbound_transfer.protocol.outcomes import TERMINAL_STATUSES

#: Missing transfers from which on a page of a terminal status is worth a request.
MIN_MISSING_FOR_STATUS_PAGE: Final = 10

#: Missing transfers that such a page must show for the next page to be worth a request.
MIN_HITS_PER_STATUS_PAGE: Final = 2

#: Single reads that may fail in a row before the service is considered down.
MAX_CONSECUTIVE_ERRORS: Final = 3

#: Most requests for the listing of outstanding transfers in one scan. A longer listing is read in parts. Also the most
#: single reads of transfers that such a listing has not shown.
MAX_WHOLE_LISTING: Final = 12

#: Requests of one scan for the listing that is read in parts, if the finished transfers are listed, too. Otherwise it
#: is what shows that a transfer has finished, and has :data:`MAX_WHOLE_LISTING` requests.
SLOW_REQUESTS: Final = 1

#: Seconds from the end of such a listing to the next one. A transfer that the key no longer sees, or that has status
#: ``unknown``, may be noticed only after this time.
SLOW_LISTING_INTERVAL: Final = 3_600.0

#: Maximum number of requests of one scan for the transfers that events name.
MAX_HINT_REQUESTS: Final = 6


@dataclass(frozen=True)
class ListingCost:
    """The known cost of a listing.

    :ivar pages: requests that the last one took, or spent before another way turned out to be cheaper.
    :ivar age: scans since then. The listing is tried again after as many scans as it took requests.
    """

    pages: int = 1
    age: int = 0

    def is_cheaper_than(self, requests: int) -> bool:
        """Return whether to list, rather than make this many requests."""
        return self.pages < requests or (self.age >= self.pages and requests > 1)

    def grow_older(self) -> ListingCost:
        """Return the cost after a scan without this listing."""
        return replace(self, age=self.age + 1)


@dataclass(frozen=True)
class Wanted:
    """The transfers that a scan is for.

    :ivar waited_for: all transfers that somebody waits for: time of sending in seconds since the epoch by id; 0 if
        unknown.
    :ivar due: those of them that are to be read now.
    :ivar urgent: due ones for which it does not suffice that no listing shows them as finished.
    :ivar unread: due ones that were never read.
    :ivar may_expire: whether a due one that is not urgent may have expired.
    """

    waited_for: Mapping[str, float]
    due: Set[str]
    urgent: Set[str] = frozenset()
    unread: Set[str] = frozenset()
    may_expire: bool = True

    def oldest(self, transfer_ids: Iterable[str]) -> float:
        """Return when the oldest of the transfers was sent, in seconds since the epoch."""
        return min((self.waited_for.get(one, 0.0) for one in transfer_ids), default=0.0)


@dataclass
class SlowListing:
    """A listing of all outstanding transfers that is read in parts, over several scans.

    :ivar unseen: transfers that it has not shown. After its end, these are read one by one.
    :ivar statuses: those that are not listed to their end; none if no listing is being read.
    :ivar cursor: of the next page.
    :ivar requests: that it has taken.
    :ivar length: requests that the last one took.
    :ivar due_at: when the next one begins, in monotonic seconds.
    """

    unseen: set[str] = field(default_factory=set)
    statuses: tuple[str, ...] = ()
    cursor: str | None = None
    requests: int = 0
    length: int = 0
    due_at: float = 0.0

    @property
    def is_needed(self) -> bool:
        """Whether the listing is too long for one scan."""
        return self.length > MAX_WHOLE_LISTING

    def start(self, waited_for: Iterable[str]) -> None:
        # A transfer moves from pending to partial (R18), so in this order it is seen at least once.
        self.unseen, self.statuses, self.cursor, self.requests = set(waited_for), (PENDING, PARTIAL), None, 0

    def finish(self, now: float) -> None:
        leaves_many = len(self.unseen) > MAX_WHOLE_LISTING
        self.length = max(self.requests, MAX_WHOLE_LISTING + 1) if leaves_many else self.requests
        self.statuses, self.due_at = (), now + SLOW_LISTING_INTERVAL


@dataclass
class ScanProgress:
    """What the scans of one poller have learned.

    :ivar outstanding: the cost of listing the outstanding transfers that were wanted last.
    :ivar finished: the cost of listing those finished ones that were sent since the oldest wanted transfer.
    :ivar picked_up: the cost of listing what events name.
    :ivar slow: the listing that is read in parts.
    """

    outstanding: ListingCost = ListingCost()
    finished: ListingCost = ListingCost()
    picked_up: ListingCost = ListingCost()
    slow: SlowListing = field(default_factory=SlowListing)


def scan_statuses(
    wanted: Wanted,
    progress: ScanProgress,
    found: ScanResult,
    failures: Mapping[str, tuple[int, float]] | None = None,
    now: float = 0.0,
) -> Flow[None]:
    """Read the statuses of the transfers that are due.

    If the outstanding transfers of the key fill at most :data:`MAX_WHOLE_LISTING` pages, each of them is read. It takes
    as many requests as there are pages, or as transfers if these are fewer, plus one for each that is not listed. A
    scan that has to find out which is cheaper may take twice as many.

    Otherwise, the urgent ones are read so. Others are presumed to be outstanding if they are not listed as finished;
    those that were never read may be left to the next scan.

    :param progress: of the earlier scans; updated.
    :param found: receives the results.
    :param failures: number and time of the failed single reads, by id. These transfers are read last, so that they do
        not delay the others.
    :param now: monotonic seconds.
    :raises CallError: the service is unavailable or rejects the key.
    """
    if not wanted.due:
        return
    failures = failures or {}
    others = wanted.due - wanted.urgent
    if len(others) > MAX_WHOLE_LISTING * endpoints.MAX_PAGE_SIZE:
        progress.slow.length = max(progress.slow.length, MAX_WHOLE_LISTING + 1)
    if len(others) <= MAX_WHOLE_LISTING:
        yield from _read(set(wanted.due), wanted, progress, found, failures, len(wanted.due))
    elif not progress.slow.is_needed:
        max_requests = max(len(wanted.urgent), MAX_WHOLE_LISTING + 1)
        yield from _read(set(wanted.due), wanted, progress, found, failures, max_requests)
    else:
        yield from _read(set(wanted.urgent), wanted, progress, found, failures, len(wanted.urgent))
        left, is_whole = yield from _list_finished(others, wanted, progress, found, failures)
        max_requests = SLOW_REQUESTS if is_whole else MAX_WHOLE_LISTING
        yield from _continue_slow_listing(left, wanted, progress.slow, found, failures, now, max_requests)


def scan_named(named: Sequence[str], wanted: Wanted, progress: ScanProgress, found: ScanResult) -> Flow[None]:
    """Read transfers that events name, with at most :data:`MAX_HINT_REQUESTS`: most of them were picked up.

    :param named: the first ones are read first, if not all are.
    :raises CallError: one of them could not be read.
    """
    missing, left = set(named), MAX_HINT_REQUESTS
    if progress.picked_up.is_cheaper_than(min(len(missing), left)):
        progress.picked_up = ListingCost(left)  # unless it succeeds
        paging = yield from page_through(COMPLETE, missing, found, wanted.oldest(missing), max_requests=left)
        progress.picked_up = ListingCost(paging.requests if paging.is_whole else left)
        left -= paging.requests
    else:
        progress.picked_up = progress.picked_up.grow_older()
    for transfer_id in [one for one in named if one in missing][:left]:
        yield from _fetch_each([transfer_id], found, {})


def _read(
    missing: set[str],
    wanted: Wanted,
    progress: ScanProgress,
    found: ScanResult,
    failures: Mapping[str, tuple[int, float]],
    max_requests: int,
) -> Flow[None]:
    """Read the missing transfers; but only the urgent ones if the listing is too long for one scan."""
    if not progress.outstanding.is_cheaper_than(len(missing)):
        yield from _fetch_each(missing, found, failures)
        progress.outstanding = progress.outstanding.grow_older()
        return
    oldest = wanted.oldest(missing)
    requests, is_whole = 0, True
    max_requests = min(len(missing), max_requests)
    # A transfer moves from pending to partial (R18), so in this order it is seen at least once.
    for status in (PENDING, PARTIAL):
        paging = yield from page_through(status, missing, found, oldest, max_requests=max_requests - requests)
        requests += paging.requests
        is_whole &= paging.is_whole
    progress.outstanding = ListingCost(max(requests, 1))
    if not is_whole and requests >= max_requests and len(missing - wanted.urgent) > MAX_WHOLE_LISTING:
        progress.slow.length = max(requests, MAX_WHOLE_LISTING + 1)
        missing &= wanted.urgent
    for status in TERMINAL_STATUSES:
        if len(missing) >= MIN_MISSING_FOR_STATUS_PAGE:
            yield from page_through(status, missing, found, oldest, min_hits=MIN_HITS_PER_STATUS_PAGE)
    yield from _fetch_each(missing, found, failures)


def _list_finished(
    missing: Set[str],
    wanted: Wanted,
    progress: ScanProgress,
    found: ScanResult,
    failures: Mapping[str, tuple[int, float]],
) -> Generator[Call[Any], Any, tuple[set[str], bool]]:
    """Page through the terminal statuses, whose rows do not shift: a transfer keeps a terminal status (R18).

    :return: the missing transfers that are neither listed nor presumed to be outstanding; and whether the pages show
        all others that have finished.
    """
    slow, missing = progress.slow, set(missing)
    known = missing - wanted.unread
    if not known:  # those that were never read are due again at once: a few pages do not hold up the next scan
        return missing, True
    if not progress.finished.is_cheaper_than(slow.length):
        progress.finished = progress.finished.grow_older()
        presumed = known - slow.unseen if slow.statuses else set()  # this slow listing has shown them
        found.presumed |= presumed
        return missing - presumed, False
    oldest, requests, unreadable = wanted.oldest(known), 0, set[str]()
    for status in TERMINAL_STATUSES:
        if status == EXPIRED and not wanted.may_expire:
            continue
        paging = yield from page_through(
            status,
            missing,
            found,
            oldest,
            max_requests=slow.length - requests,
            min_hits_before=MIN_HITS_PER_STATUS_PAGE,
        )
        requests += paging.requests
        unreadable |= paging.unreadable
        if not paging.is_whole:
            progress.finished = ListingCost(slow.length)
            return missing, False
    progress.finished = ListingCost(max(requests, 1))
    presumed = (known & missing) - unreadable
    found.presumed |= presumed
    missing -= presumed
    return missing - (yield from _fetch_some(missing & unreadable, found, failures)), True


def _continue_slow_listing(
    missing: set[str],
    wanted: Wanted,
    slow: SlowListing,
    found: ScanResult,
    failures: Mapping[str, tuple[int, float]],
    now: float,
    max_requests: int,
) -> Flow[None]:
    """Read the next part of the listing of outstanding transfers, or some of those that it has not shown."""
    slow.unseen &= wanted.waited_for.keys()
    joined = missing - slow.unseen
    if not slow.unseen and (now >= slow.due_at or len(joined) > slow.length):
        slow.start(wanted.waited_for)
    elif 0 < len(joined) <= slow.length:
        yield from page_through(PENDING, joined, found, -inf, max_requests=1)  # the newest are on the first page
        slow.unseen |= joined
    left = max_requests
    oldest = wanted.oldest(slow.unseen)
    while slow.statuses and left:
        listed = slow.unseen | joined
        paging = yield from page_through(slow.statuses[0], listed, found, oldest, max_requests=left, cursor=slow.cursor)
        slow.unseen &= listed
        joined &= listed
        slow.cursor, left, slow.requests = paging.cursor, left - paging.requests, slow.requests + paging.requests
        if slow.cursor is None:
            slow.statuses = slow.statuses[1:]
        if not slow.statuses or not slow.unseen or slow.requests >= len(wanted.waited_for):
            slow.finish(now)
    if slow.unseen and left:
        slow.unseen -= yield from _fetch_some(slow.unseen, found, failures, wanted.unread)


def _fetch_some(
    missing: Set[str],
    found: ScanResult,
    failures: Mapping[str, tuple[int, float]],
    unread: Set[str] = frozenset(),
) -> Generator[Call[Any], Any, set[str]]:
    """Fetch the first few of the missing transfers; return which.

    :param unread: these are fetched first.
    """
    in_order = sorted(missing, key=lambda one: (failures.get(one, (0, 0.0)), one not in unread, one))
    fetched = in_order[:MAX_WHOLE_LISTING]
    yield from _fetch_each(fetched, found, failures)
    return set(fetched)


def _fetch_each(missing: Iterable[str], found: ScanResult, failures: Mapping[str, tuple[int, float]]) -> Flow[None]:
    """Fetch each missing transfer by itself.

    A transfer that cannot be read must not delay the others, and a service that is down must not get all the requests.

    :raises CallError: the service has returned nothing usable in this scan.
    """
    failed: dict[str, CallError] = {}
    consecutive_errors = 0
    for transfer_id in sorted(missing, key=lambda each: (failures.get(each, (0, 0.0)), each)):
        try:
            transfer = yield endpoints.get_transfer(transfer_id)
            found.add(structs.replace(transfer, id=transfer_id))
            found.has_response, consecutive_errors = True, 0
        except InvalidDelivery as error:
            found.missing[transfer_id] = error
        except NotFound as error:
            found.missing[transfer_id] = error
            found.has_response, consecutive_errors = True, 0
        except (InvalidApiKey, Forbidden, RateLimited):
            raise
        except CallError as error:
            failed[transfer_id] = error
            consecutive_errors += 1
            if consecutive_errors == MAX_CONSECUTIVE_ERRORS:
                found.is_incomplete = True
                break
    if failed and not found.has_response:
        found.failed_alone |= failed
        raise next(reversed(failed.values()))
    found.failed |= failed
