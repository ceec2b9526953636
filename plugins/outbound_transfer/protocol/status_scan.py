"""Reads the statuses of many transfers with few requests.

A transfer is *outstanding* while it is listed as ``pending`` or ``partial``; pages of 100 show those. A transfer that
is not listed has finished, was skipped because rows shifted while paging (service-api.md, R28), or is never listed (a
draft, status ``unknown``). It is fetched by itself or, if many are missing, found on a page of a terminal status.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs

from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import (
    CallError,
    Forbidden,
    InvalidApiKey,
    InvalidDelivery,
    MalformedResponse,
    NotFound,
    RateLimited,
    ServerFault,
)
from outbound_transfer.protocol.messages import Call, Flow
from outbound_transfer.protocol.models import (
    PARTIAL,
    PENDING,
    Transfer,
    TransferPage,
    UnreadableRow,
    to_epoch,
)
from outbound_transfer.protocol.outcomes import TERMINAL_STATUSES

#: Missing transfers from which on a page of a terminal status is worth a request.
MIN_MISSING_FOR_STATUS_PAGE: Final = 10

#: Missing transfers that such a page must show for the next page to be worth a request.
MIN_HITS_PER_STATUS_PAGE: Final = 2

#: Single reads that may fail in a row before the service is considered down.
MAX_CONSECUTIVE_ERRORS: Final = 3

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
    :ivar unreadable: rows of listings that are not valid transfers.
    :ivar has_response: whether the service has returned anything usable.
    :ivar is_incomplete: whether some transfers were not requested, because too many reads before them had failed.
    """

    transfers: dict[str, Transfer] = field(default_factory=dict)
    missing: dict[str, Exception] = field(default_factory=dict)
    failed: dict[str, CallError] = field(default_factory=dict)
    failed_alone: dict[str, CallError] = field(default_factory=dict)
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
        self.transfers, self.missing, self.failed, self.failed_alone, self.unreadable = {}, {}, {}, {}, []
        return drained


@dataclass(frozen=True)
class ListingCost:
    """The known cost of listing all outstanding transfers of the key.

    :ivar pages: requests that the last listing took, or spent before single reads turned out to be cheaper.
    :ivar age: scans since then. The listing is tried again after as many scans as it took requests.
    """

    pages: int = 1
    age: int = 0

    def is_cheaper_than(self, reads: int) -> bool:
        """Return whether to list, rather than make this many single reads."""
        return self.pages < reads or (self.age >= self.pages and reads > 1)


@dataclass(frozen=True)
class Row:
    """One row of a listing; ``transfer`` is None if the row is unreadable."""

    id: str
    transfer: Transfer | None

    @property
    def sent_at(self) -> float | None:
        """Time of sending in seconds since the epoch; None if unknown."""
        return to_epoch(self.transfer.sent_at) if self.transfer else None


def scan_statuses(
    wanted: Mapping[str, float],
    cost: ListingCost,
    found: ScanResult,
    failures: Mapping[str, tuple[int, float]] | None = None,
) -> Flow[ListingCost]:
    """Read the status of every wanted transfer.

    Takes as many requests as there are pages of outstanding transfers, or as wanted transfers if these are fewer, plus
    one for each wanted transfer that is not listed. A scan that has to find out which is cheaper may take twice as
    many.

    :param wanted: time of sending in seconds since the epoch by id; 0 if unknown.
    :param cost: the return value of the last scan.
    :param found: receives the results.
    :param failures: number and time of the failed single reads, by id. These transfers are read last, so that they do
        not delay the others.
    :return: the cost for the next scan.
    :raises CallError: the service is unavailable or rejects the key.
    """
    missing = set(wanted)
    if not cost.is_cheaper_than(len(missing)):
        yield from _fetch_each(missing, found, failures or {})
        return replace(cost, age=cost.age + 1)
    oldest = min(wanted.values())
    spent = 0
    # A transfer moves from pending to partial (R18), so in this order it is seen at least once.
    for status in (PENDING, PARTIAL):
        spent += yield from _page_through(status, missing, found, oldest, max_requests=len(wanted) - spent)
    for status in TERMINAL_STATUSES:
        if len(missing) >= MIN_MISSING_FOR_STATUS_PAGE:
            yield from _page_through(status, missing, found, oldest, min_hits=MIN_HITS_PER_STATUS_PAGE)
    yield from _fetch_each(missing, found, failures or {})
    return ListingCost(max(spent, 1))


def list_outstanding(found: ScanResult) -> Flow[tuple[list[Row], list[Row]]]:
    """List the newest sent transfers and all outstanding ones.

    :param found: receives unreadable rows.
    :return: the first page of sent transfers, newest first; and every outstanding transfer.
    :raises CallError: the service is unavailable or rejects the key, or a listing does not end.
    """
    before = yield endpoints.list_transfers(status="all")
    outstanding = []
    for status in (PENDING, PARTIAL):
        outstanding += yield from _list_rows(status, found)
    # Requested last, so that it shows every transfer that was sent before the other requests.
    newest = yield endpoints.list_transfers(status="all")
    found.add_page(newest)
    # An unreadable row that is new since the first page may be outstanding; older ones are in the other listings.
    known = {row.id for row in _rows(before)}
    outstanding += [row for row in _rows(newest) if row.transfer is None and row.id not in known]
    return _rows(newest), outstanding


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


def _page_through(
    status: str,
    missing: set[str],
    found: ScanResult,
    oldest: float,
    *,
    max_requests: int | None = None,
    min_hits: int = 0,
) -> Generator[Call[Any], Any, int]:
    """Page through ``status`` and remove the transfers that it shows from ``missing``.

    A page that is malformed, or that the service fails to return (500), ends the paging.

    :param oldest: when the oldest wanted transfer was sent, in seconds since the epoch.
    :param max_requests: maximum number of requests.
    :param min_hits: a page that shows fewer missing transfers is the last.
    :return: the number of requests.
    """
    cursor: str | None = None
    spent = 0
    while missing and (max_requests is None or spent < max_requests):
        spent += 1
        try:
            page = yield endpoints.list_transfers(status=status, cursor=cursor)
        except (MalformedResponse, ServerFault) as error:
            if isinstance(error, ServerFault) and error.status != 500:
                raise
            break
        found.add_page(page)
        shown = {transfer.id: transfer for transfer in page.data if transfer.id in missing}
        for transfer in shown.values():
            found.add(transfer)
        missing.difference_update(shown)
        is_last = len(shown) < min_hits or _is_mostly_before(_rows(page), oldest)
        if is_last or page.next_cursor in (None, cursor):
            break
        cursor = page.next_cursor
    return spent


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


def _rows(page: TransferPage) -> list[Row]:
    """Return the rows of a page in their order, without those whose id is unreadable."""
    return [Row(each.id, each if isinstance(each, Transfer) else None) for each in page.rows if each.id]


def _is_mostly_before(rows: list[Row], timestamp: float, known: Set[str] = frozenset()) -> bool:
    """Return whether the rows that follow were sent before ``timestamp``; a few absurd times do not matter."""
    before = sum(row.id in known or ((sent_at := row.sent_at) is not None and sent_at < timestamp) for row in rows)
    return bool(rows) and 2 * before >= len(rows)
