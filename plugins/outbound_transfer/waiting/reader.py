"""Reads the transfers that are waited for with as few calls as possible. It knows no loop and no wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from outbound_transfer.protocol.errors import (
    CallError,
    Forbidden,
    InvalidApiKey,
    InvalidDelivery,
    NotFound,
    RateLimited,
)
from outbound_transfer.protocol.models import CANCELED, COMPLETE, EXPIRED, PARTIAL, PENDING, Transfer
from outbound_transfer.waiting.wait import Now, Row, now

if TYPE_CHECKING:
    from outbound_transfer.client import Client
    from outbound_transfer.waiting.pages import SharedPages

T = TypeVar("T")

#: Maximum number of transfers that one poll reads singly.
MAX_SINGLE_READS: Final = 20

#: Failures in a row after which a poll is given up.
MAX_FAILURES: Final = 3

#: Seconds after which the outstanding are listed again, as only that, or a single read, shows that one is gone.
LISTING_SECONDS: Final = 3_600.0

OUTSTANDING: Final = (PENDING, PARTIAL)  # in this order, as one that moves is then seen
FINISHED: Final = (COMPLETE, EXPIRED, CANCELED)


class Way(IntEnum):
    """How a poll reads; of ways that cost the same it takes the first."""

    SINGLY = 0
    OUTSTANDING = 1
    FINISHED = 2


class Wanted(NamedTuple):
    """A transfer to read.

    :ivar row: as it was last shown.
    :ivar must_be_read: whether it does not suffice that no listing shows it as finished, or what others were shown.
    """

    row: Row | None
    must_be_read: bool

    @property
    def can_be_presumed(self) -> bool:
        """Whether it is outstanding if no listing of the finished shows it."""
        return bool(not self.must_be_read and self.row and self.row.status in OUTSTANDING and self.row.sent_at)


class News(NamedTuple):
    """What a response shows.

    :ivar at: when it was requested.
    :ivar outstanding: ids of outstanding transfers, with what another triggerer was shown of them.
    :ivar errors: by id, of transfers that could not be read singly.
    """

    at: Now
    transfers: Iterable[Transfer] = ()
    outstanding: Mapping[str, Row | None] = {}
    errors: Mapping[str, Exception] = {}


class Reader:
    """Reads with one client, and remembers what each way has cost.

    :ivar calls: of the last poll.
    """

    def __init__(self, client: Client, pages: SharedPages | None = None) -> None:
        self.client, self._pages = client, pages
        self.calls = self._looks = self._failures = 0
        self._costs: dict[Way, int] = {}
        self._listed_at = -inf
        self._finished = frozenset[str]()

    def read(self, wanted: Mapping[str, Wanted], began: Now, max_age: float, tell: Callable[[News], object]) -> None:
        """Read the wanted transfers; those that no listing shows in their order, and not all of them.

        :param max_age: seconds for which a page that another triggerer has read is of use.
        :param tell: called with each response.
        :raises CallError: nothing more can be read now.
        """
        self.calls = self._looks = self._failures = 0
        self._wanted, self._missing, self._began, self._tell = wanted, dict(wanted), began, tell
        is_urgent = sum(one.must_be_read for one in wanted.values()) > MAX_SINGLE_READS
        self._max_age = 0.0 if is_urgent else max_age
        way = self._choose()
        if way is Way.FINISHED:
            if self._list_finished(self._costs[Way.OUTSTANDING]):
                unshown = {one: each for one, each in self._missing.items() if one not in self._finished}
                self._found(News(began, outstanding={one: None for one in unshown if unshown[one].can_be_presumed}))
            else:
                way = Way.OUTSTANDING
        if way is Way.OUTSTANDING:
            self._looks, self._listed_at = 0, began.monotonic
            for status in OUTSTANDING:
                self._list(status, len(wanted))
            if len(self._missing) > MAX_SINGLE_READS:
                self._list_finished(self._looks + len(self._missing))
        self._read_singly()
        if way is Way.OUTSTANDING:
            self._costs[way] = self._looks

    def _choose(self) -> Way:
        """Return the way that costs the fewest calls, as far as is known from the last time."""
        if self._began.monotonic - self._listed_at >= LISTING_SECONDS:
            self._costs = {}
        costs = {Way.OUTSTANDING: self._costs.get(Way.OUTSTANDING, len(OUTSTANDING))}
        if len(self._wanted) <= MAX_SINGLE_READS:
            costs[Way.SINGLY] = len(self._wanted)
        if Way.OUTSTANDING in self._costs:
            unsure = sum(not one.can_be_presumed for one in self._wanted.values())
            costs[Way.FINISHED] = self._costs.get(Way.FINISHED, len(FINISHED)) + unsure
        return min(costs, key=lambda way: (costs[way], way))

    def _list_finished(self, limit: int) -> bool:
        """List those that have finished since the oldest of the missing was sent.

        :param limit: of pages in this poll.
        :return: whether the listings are whole, and show something of what they showed before.
        """
        before, known, self._finished = self._looks, self._finished, frozenset()
        sent = [one.row.sent_at for one in self._missing.values() if one.row and one.row.sent_at]
        since = min(sent, default=0.0) if len(self._missing) - len(sent) <= MAX_SINGLE_READS else 0.0
        is_whole = all(self._list(status, limit, since) for status in FINISHED)
        self._costs[Way.FINISHED] = self._looks - before
        return not self._missing or (is_whole and bool(not known or known & self._finished))

    def _list(self, status: str, limit: int, since: float = -inf) -> bool:
        """List one status while something is missing; return whether that is all of it.

        :param since: seconds since the epoch; what was sent before is left out.
        """
        cursor, known = None, set[str]()
        while self._missing:
            page = self._read_page(status, cursor) if self._looks < limit else None
            if page is None:
                return False
            rows, next_cursor = page
            shown = {row.id for row in rows}
            # A few absurd times do not matter.
            is_before = bool(rows) and 2 * sum((row.sent_at or inf) < since for row in rows) >= len(rows)
            if next_cursor is None or is_before:
                return True
            if next_cursor == cursor or shown <= known:  # it never ends
                return False
            cursor, known = next_cursor, known | shown
        return True

    def _read_page(self, status: str, cursor: str | None) -> tuple[list[Row], str | None] | None:
        """Return a page, of another triggerer if it has read it lately; None if it cannot be read."""
        listing, at, unreadable = f"{status} {cursor or ''}", now(), set[str]()
        self._looks += 1
        if self._pages and self._max_age and (kept := self._pages.find(listing, self._max_age)):
            rows, next_cursor = [Row(*row) for row in kept[0]], kept[1]
            usable = {one for one, each in self._missing.items() if not each.must_be_read}
            outstanding = {row.id: row for row in rows if row.id in usable and row.status in OUTSTANDING}
            self._found(News(self._began, outstanding=outstanding))
        else:
            try:
                page = self._call(partial(self.client.list_transfers, status=status, cursor=cursor))
            except CallError as error:
                self._tolerate(error)
                return None
            rows, next_cursor = [Row.of(transfer) for transfer in page.data], page.next_cursor
            unreadable = {row.id for row in page.unreadable}
            self._found(News(at, page.data))
            if self._pages:
                self._pages.keep(listing, (rows, next_cursor))
        if status in FINISHED:
            self._finished |= unreadable.union(row.id for row in rows)
        return rows, next_cursor

    def _read_singly(self) -> None:
        for transfer_id in list(self._missing)[:MAX_SINGLE_READS]:
            at = now()
            self._looks += 1
            try:
                self._found(News(at, [self._call(partial(self.client.get_transfer, transfer_id))]))
            except (NotFound, InvalidDelivery) as error:
                self._found(News(at, errors={transfer_id: error}))
            except (InvalidApiKey, Forbidden, RateLimited):
                raise
            except CallError as error:
                self._found(News(at, errors={transfer_id: error}))
                self._tolerate(error)

    def _call(self, call: Callable[[], T]) -> T:
        self.calls += 1
        response = call()
        self._failures = 0
        return response

    def _tolerate(self, error: CallError) -> None:
        """Go on without a response, unless that would be in vain."""
        self._failures += 1
        if isinstance(error, InvalidApiKey | Forbidden | RateLimited) or self._failures >= MAX_FAILURES:
            raise error

    def _found(self, news: News) -> None:
        for one in (*(transfer.id for transfer in news.transfers), *news.outstanding, *news.errors):
            self._missing.pop(one, None)
        self._tell(news)
