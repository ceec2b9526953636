"""Reads the transfers that are waited for with as few calls as possible. It knows no loop and no wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from outbound_transfer.client.errors import (
    CallError,
    Forbidden,
    InvalidApiKey,
    InvalidDelivery,
    NotFound,
    RateLimited,
)
from outbound_transfer.client.models import Transfer, TransferPage, to_epoch
from outbound_transfer.store.statuses import TERMINAL_STATUSES as FINISHED
from outbound_transfer.waiting.wait import OUTSTANDING

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.waiting.pages import SharedPages

T = TypeVar("T")

#: Called with the id of a transfer; with the transfer, the error of its read, or None if it is known to be outstanding
#: still; and with the time of the request.
Tell: TypeAlias = Callable[[str, Transfer | Exception | None, float], object]

#: Maximum number of transfers that one poll reads singly.
MAX_SINGLE_READS: Final = 20

#: Failures in a row after which a poll is given up.
MAX_FAILURES: Final = 3


class Reader:
    """Reads for several polls, as what one has cost, in pages and single reads, decides how the next one reads.

    The first poll lists the outstanding: only that, or a single read, shows that one is gone.

    :param pages: those of other triggerers.
    :ivar calls: of the last poll.
    """

    def __init__(self, pages: SharedPages) -> None:
        self._pages = pages
        self.calls = self._looks = self._failures = 0
        self._cost_of_outstanding, self._cost_of_finished = len(OUTSTANDING), len(FINISHED)
        self._finished = frozenset[str]()

    def read(
        self, client: Client, wanted: Mapping[str, Transfer | None], began: float, max_age: float, tell: Tell
    ) -> None:
        """Read the wanted transfers; those that no listing shows in their order, and not all of them.

        :param wanted: by id; each as it was last seen if it is outstanding unless a listing of the finished, or what
            another triggerer was shown, says otherwise; None if it must be read.
        :param max_age: seconds for which a page that another triggerer has read is of use.
        :raises CallError: nothing more can be read now.
        """
        self._client, self._missing, self._began, self._tell = client, dict(wanted), began, tell
        self.calls = self._looks = self._failures = 0
        unsure = sum(seen is None for seen in wanted.values())
        self._max_age = max_age if unsure <= MAX_SINGLE_READS else 0.0
        of_outstanding, of_finished = self._cost_of_outstanding, self._cost_of_finished + unsure
        if len(wanted) > min(of_outstanding, of_finished, MAX_SINGLE_READS) and (
            of_outstanding <= of_finished or not self._presume()
        ):
            self._list_outstanding(len(wanted))
        for transfer_id in list(self._missing)[:MAX_SINGLE_READS]:
            at = time.time()
            self._found(transfer_id, self._call(partial(client.get_transfer, transfer_id)), at)

    def _presume(self) -> bool:
        """List the finished; take the others for outstanding. Return whether the listings can be believed."""
        sent_at = [to_epoch(seen.sent_at) or 0.0 for seen in self._missing.values() if seen]
        shown_before, self._finished = self._finished, frozenset()
        is_whole = self._list(FINISHED, self._cost_of_outstanding, min(sent_at, default=0.0))
        self._cost_of_finished = self._looks
        # Listings that show nothing of what they showed before are of another account, or of none.
        if self._missing and (not is_whole or (shown_before and shown_before.isdisjoint(self._finished))):
            return False
        for transfer_id, seen in list(self._missing.items()):
            if seen and transfer_id not in self._finished:
                self._found(transfer_id, None, self._began)
        return True

    def _list_outstanding(self, limit: int) -> None:
        before = self._looks
        self._list(OUTSTANDING, limit)
        if len(self._missing) > MAX_SINGLE_READS:
            self._list(FINISHED, len(self._missing))
        self._cost_of_outstanding = self._looks - before + min(len(self._missing), MAX_SINGLE_READS)

    def _list(self, statuses: Iterable[str], limit: int, since: float = 0.0) -> bool:
        """List statuses while something is missing; return whether that is all of them. A failure ends one of them.

        :param limit: of pages.
        :param since: seconds since the epoch; what was sent before is left out.
        """
        last, is_whole = self._looks + limit, True
        for status in statuses:
            cursor: str | None = None
            while self._missing:
                page = self._read_page(status, cursor) if self._looks < last else None
                if page is None:
                    is_whole = False
                    break
                cursor = page.next_cursor
                if cursor is None or max((to_epoch(row.sent_at) or inf for row in page.rows), default=inf) < since:
                    break
        return is_whole

    def _read_page(self, status: str, cursor: str | None) -> TransferPage | None:
        """Return a page, of another triggerer if it has read it lately; None if it cannot be read."""
        listing, at = f"{status} {cursor or ''}", time.time()
        self._looks += 1
        page = self._pages.find(listing, self._max_age) if self._max_age else None
        if page:
            for row in page.data:
                if row.status in OUTSTANDING and self._missing.get(row.id):
                    self._found(row.id, None, self._began)
        else:
            read = self._call(partial(self._client.list_transfers, status=status, cursor=cursor))
            if isinstance(read, Exception):
                return None
            page = read
            for row in page.data:
                self._found(row.id, row, at)
            self._pages.keep(listing, page)
        if status in FINISHED:
            self._finished |= {row.id for row in page.rows}
        return page

    def _call(self, call: Callable[[], T]) -> T | Exception:
        """Return a response, or an error that says nothing of other calls."""
        self.calls += 1
        try:
            response = call()
        except (NotFound, InvalidDelivery) as error:
            return error
        except CallError as error:
            self._failures += 1
            if isinstance(error, InvalidApiKey | Forbidden | RateLimited) or self._failures == MAX_FAILURES:
                raise
            return error
        self._failures = 0
        return response

    def _found(self, transfer_id: str, found: Transfer | Exception | None, at: float) -> None:
        self._missing.pop(transfer_id, None)
        self._tell(transfer_id, found, at)
