"""Lists transfers, 100 with each request."""

from __future__ import annotations

from collections.abc import Generator, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import CallError, MalformedResponse, ServerFault
from outbound_transfer.protocol.messages import Call, Flow
from outbound_transfer.protocol.models import PARTIAL, PENDING, Transfer, TransferPage, UnreadableRow, to_epoch
from outbound_transfer.protocol.outcomes import TERMINAL_STATUSES

#: Pages without new rows in a row, and pages in all, from which on a listing is taken to be endless.
MAX_FRUITLESS_PAGES: Final = 3
MAX_PAGES: Final = 1_000


@dataclass
class ScanResult:
    """The result of a scan so far. It is filled during the scan, so that a late failure loses nothing.

    :ivar transfers: by id. A terminal status is never replaced by a later response.
    :ivar missing: errors by id: the key does not see the transfer (404), or the id is invalid.
    :ivar failed: errors by id of transfers that could not be read. They say nothing about the transfer.
    :ivar failed_alone: like ``failed``, while no other read succeeded: the service or these transfers may be the cause.
    :ivar presumed: ids of transfers that were not read, and that are presumed to be outstanding.
    :ivar unreadable: rows of listings that are not valid transfers.
    :ivar has_response: whether the service has returned anything usable.
    :ivar is_incomplete: whether some transfers were not requested, because too many reads before them had failed.
    """

    transfers: dict[str, Transfer] = field(default_factory=dict)
    missing: dict[str, Exception] = field(default_factory=dict)
    failed: dict[str, CallError] = field(default_factory=dict)
    failed_alone: dict[str, CallError] = field(default_factory=dict)
    presumed: set[str] = field(default_factory=set)
    unreadable: list[UnreadableRow] = field(default_factory=list)
    has_response: bool = False
    is_incomplete: bool = False

    def add(self, transfer: Transfer) -> None:
        before = self.transfers.get(transfer.id)
        if before is None or before.status not in TERMINAL_STATUSES:
            self.transfers[transfer.id] = transfer

    def add_page(self, page: TransferPage) -> None:
        """Record that a page was received."""
        self.has_response = True
        self.unreadable += page.unreadable

    def drain(self) -> ScanResult:
        """Return what was found since the last call, and clear it."""
        drained = replace(self)
        self.transfers, self.missing, self.failed, self.failed_alone = {}, {}, {}, {}
        self.presumed, self.unreadable = set(), []
        return drained


@dataclass(frozen=True)
class Row:
    """One row of a listing; ``transfer`` is None if the row is unreadable."""

    id: str
    transfer: Transfer | None

    @property
    def sent_at(self) -> float | None:
        """Time of sending in seconds since the epoch; None if unknown."""
        return to_epoch(self.transfer.sent_at) if self.transfer else None


def list_outstanding(found: ScanResult) -> Flow[tuple[list[Row], list[Row]]]:
    """List the newest sent transfers and all outstanding ones.

    :param found: receives unreadable rows.
    :return: the newest sent transfers, newest first, with all that were sent meanwhile; and every outstanding transfer.
    :raises CallError: the service is unavailable or rejects the key, or a listing does not end.
    """
    before = yield endpoints.list_transfers(status="all")
    outstanding = []
    for status in (PENDING, PARTIAL):
        outstanding += yield from _list_rows(status, found)
    # Listed last, down to what the first page has shown: the other listings may not show what was sent meanwhile.
    known = {row.id for row in _rows(before)}
    newest = yield from _list_rows("all", found, known=known)
    # An unreadable row that is new since the first page may be outstanding; older ones are in the other listings.
    outstanding += [row for row in newest if row.transfer is None and row.id not in known]
    return newest, outstanding


def list_sent_since(timestamp: float, known: Set[str], found: ScanResult) -> Flow[list[Row]]:
    """List sent transfers, newest first, until most rows of a page are known or were sent before ``timestamp``.

    Pages through ``status=all``, where no row is skipped while transfers change (service-api.md, R28).

    :param timestamp: seconds since the epoch.
    :param known: ids that need not be listed again.
    :param found: receives unreadable rows.
    :raises MalformedResponse: the listing does not end.
    """
    return (yield from _list_rows("all", found, timestamp, known))


def _list_rows(
    status: str, found: ScanResult, since: float = float("-inf"), known: Set[str] = frozenset()
) -> Flow[list[Row]]:
    """List a status to its end, or until most rows of a page are known or were sent before ``since``.

    :raises MalformedResponse: the listing does not end, so it does not prove what is missing.
    """
    listed: dict[str, Row] = {}
    cursor: str | None = None
    fruitless = 0
    for _ in range(MAX_PAGES):
        page = yield endpoints.list_transfers(status=status, cursor=cursor)
        found.add_page(page)
        rows = _rows(page)
        before = len(listed)
        listed |= {row.id: row for row in rows}
        fruitless = 0 if len(listed) > before else fruitless + 1
        if page.next_cursor is None or _is_mostly_before(rows, since, known):
            return list(listed.values())
        if page.next_cursor == cursor or fruitless == MAX_FRUITLESS_PAGES:
            break
        cursor = page.next_cursor
    raise MalformedResponse("list: the listing does not end")


class Paging(NamedTuple):
    """How far a listing was paged through.

    :ivar requests: their number.
    :ivar is_whole: whether it was read to its end, or until nothing was missing.
    :ivar cursor: of the next page, if there is one and it may be read.
    :ivar unreadable: ids of rows that are not valid transfers.
    """

    requests: int
    is_whole: bool = False
    cursor: str | None = None
    unreadable: frozenset[str] = frozenset()


def page_through(
    status: str,
    missing: set[str],
    found: ScanResult,
    oldest: float,
    *,
    max_requests: int | None = None,
    min_hits: int = 0,
    min_hits_before: int | None = None,
    cursor: str | None = None,
) -> Generator[Call[Any], Any, Paging]:
    """Page through ``status`` and remove the transfers that it shows from ``missing``.

    A page that is malformed, or that the service fails to return (500), ends the paging.

    :param oldest: when the oldest wanted transfer was sent, in seconds since the epoch.
    :param max_requests: maximum number of requests.
    :param min_hits: a page that shows fewer missing transfers is the last.
    :param min_hits_before: the same for pages of transfers that were sent before ``oldest``; None to read none.
    :param cursor: of the first page.
    """
    requests = 0
    unreadable: set[str] = set()
    while missing and (max_requests is None or requests < max_requests):
        requests += 1
        try:
            page = yield endpoints.list_transfers(status=status, cursor=cursor)
        except (MalformedResponse, ServerFault) as error:
            if isinstance(error, ServerFault) and error.status != 500:
                raise
            return Paging(requests)
        found.add_page(page)
        unreadable |= {row.id for row in page.unreadable}
        shown = {transfer.id: transfer for transfer in page.data if transfer.id in missing}
        for transfer in shown.values():
            found.add(transfer)
        missing.difference_update(shown)
        is_before = _is_mostly_before(_rows(page), oldest)
        is_whole = page.next_cursor is None or (is_before and (min_hits_before is None or len(shown) < min_hits_before))
        if is_whole or len(shown) < min_hits or page.next_cursor == cursor:
            return Paging(requests, is_whole, None, frozenset(unreadable))
        cursor = page.next_cursor
    return Paging(requests, not missing, cursor if missing else None, frozenset(unreadable))


def _rows(page: TransferPage) -> list[Row]:
    """Return the rows of a page in their order, without those whose id is unreadable."""
    return [Row(each.id, each if isinstance(each, Transfer) else None) for each in page.rows if each.id]


def _is_mostly_before(rows: list[Row], timestamp: float, known: Set[str] = frozenset()) -> bool:
    """Return whether the rows that follow were sent before ``timestamp``; a few absurd times do not matter."""
    before = sum(row.id in known or ((sent_at := row.sent_at) is not None and sent_at < timestamp) for row in rows)
    return bool(rows) and 2 * before >= len(rows)
