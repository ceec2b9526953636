"""Reads the transfers that are waited for with as few calls as possible; pages serve all triggerers with one key."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec
import sqlalchemy as sa

from outbound_transfer.client import errors
from outbound_transfer.client.models import Transfer, TransferPage
from outbound_transfer.store.rows import TERMINAL_STATUSES as FINISHED
from outbound_transfer.store.types import Text
from outbound_transfer.waiting.wait import OUTSTANDING, epoch_of

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.store.engine import Database

T = TypeVar("T")

#: See :meth:`.Wait.update`.
Tell: TypeAlias = Callable[[str, Transfer | Exception | None, float], object]

MAX_SINGLE_READS: Final = 20  # transfers that one poll reads individually
MAX_FAILURES: Final = 3  # in a row, after which a poll is given up
NO_MORE: Final = (errors.CallsStopped, errors.InvalidApiKey, errors.Forbidden, errors.RateLimited)  # end a poll at once
MAX_SECONDS: Final = 5.0  # that the database may take for a page

log = logging.getLogger(__name__)


class Reader:
    """Reads for several polls: what one has cost, in pages and single reads, decides how the next one reads.

    The first poll lists the outstanding: only that, or a single read, shows that one is gone.
    """

    def __init__(self, pages: SharedPages) -> None:
        self._pages = pages
        self.calls = self._failures = 0  # of the last poll
        self._costs: dict[tuple[str, ...], int] = {OUTSTANDING: len(OUTSTANDING), FINISHED: len(FINISHED)}
        self._finished = frozenset[str]()

    def read(self, client: Client, wanted: Mapping[str, Transfer | None], max_age: float, tell: Tell) -> None:
        """Read the wanted transfers; those that no listing shows in their order, and not all of them.

        :param wanted: by id; as last seen if it is outstanding unless a listing of the finished, or a page of another
            triggerer, says otherwise; None if it must be read.
        :param max_age: seconds for which another triggerer's page is usable.
        :raises Exception: nothing more can be read now.
        """
        self._client, self._missing, self._tell = client, dict(wanted), tell
        self.calls = self._failures = 0
        unsure = sum(seen is None for seen in wanted.values())
        self._max_age = max_age if unsure <= MAX_SINGLE_READS else 0.0
        outstanding, finished = self._costs[OUTSTANDING], self._costs[FINISHED] + unsure
        is_listed = len(wanted) > min(outstanding, finished, MAX_SINGLE_READS)
        if is_listed and (outstanding <= finished or not self._presume()):
            self._list(OUTSTANDING, len(wanted))
            if len(self._missing) > MAX_SINGLE_READS:
                self._list(FINISHED, len(self._missing))
            self._costs[OUTSTANDING] += min(len(self._missing), MAX_SINGLE_READS)
        for transfer_id in list(self._missing)[:MAX_SINGLE_READS]:
            at = time.time()
            self._found(transfer_id, self._call(partial(client.get_transfer, transfer_id)), at)

    def _presume(self) -> bool:
        """List the finished; take the others for outstanding. Return whether the listings can be believed."""
        sent_at = [epoch_of(seen.sent_at, 0.0) for seen in self._missing.values() if seen]
        shown_before, self._finished = self._finished, frozenset()
        is_whole = self._list(FINISHED, self._costs[OUTSTANDING], min(sent_at, default=0.0))
        # Listings that show nothing of what they did are of another account, or none. A row without an id is anyone's.
        is_other = bool(shown_before) and shown_before.isdisjoint(self._finished)
        if self._missing and (not is_whole or is_other or "" in self._finished):
            self._finished |= shown_before
            return False
        for transfer_id, seen in list(self._missing.items()):
            if seen and transfer_id not in self._finished:
                self._found(transfer_id, None, time.time())
        return True

    def _list(self, statuses: tuple[str, ...], limit: int, since: float = 0.0) -> bool:
        """List statuses while something is missing; return whether nothing else was in the way.

        :param limit: of pages.
        :param since: seconds since the epoch; what was sent before is left out.
        """
        self._costs[statuses] = 0
        for status in statuses:
            cursor: str | None = None
            while self._missing:
                page = self._read_page(status, cursor) if self._costs[statuses] < limit else None
                if page is None:
                    return False
                self._costs[statuses] += 1
                cursor = page.next_cursor
                if cursor is None or max((epoch_of(row.sent_at) for row in page.rows), default=inf) < since:
                    break
        return True

    def _read_page(self, status: str, cursor: str | None) -> TransferPage | None:
        """Return a page, of another triggerer if it has read it lately; None if it cannot be read."""
        listing, at = f"{status} {cursor or ''}", time.time()
        page = self._pages.find(listing, self._max_age) if self._max_age else None
        # Another's page does not say who has picked up: one call for the whole page spares many for its transfers.
        if page and (status in OUTSTANDING or not any(row.id in self._missing for row in page.data)):
            for row in page.data:
                if row.status in OUTSTANDING and self._missing.get(row.id):
                    self._found(row.id, None, at)
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
        """Return a response, or an error that says nothing about other calls."""
        self.calls += 1
        try:
            response = call()
        except (errors.NotFound, errors.InvalidDelivery) as error:
            return error
        except Exception as error:  # such as that of an id which is too long for a URL
            self._failures += 1
            if isinstance(error, NO_MORE) or self._failures == MAX_FAILURES:
                raise
            return error
        self._failures = 0
        return response

    def _found(self, transfer_id: str, found: Transfer | Exception | None, at: float) -> None:
        self._missing.pop(transfer_id, None)
        self._tell(transfer_id, found, at)


class SharedPages:
    """The pages of one account and key: ids, statuses, times. If the database is None or has failed, none is shared."""

    def __init__(self, database: Database | None = None, prefix: str = "", schema: str | None = None, key: str = ""):
        self._database, self._key = database, key
        self._table = sa.Table(
            f"{prefix}pages",
            sa.MetaData(schema=schema),
            sa.Column("page", Text(64), primary_key=True),
            sa.Column("read_at", sa.Float(53), nullable=False),
            sa.Column("content", Text()),
        )

    def find(self, listing: str, max_age: float) -> TransferPage | None:
        page, read_at, content = self._table.c
        recent = read_at.between(time.time() - max_age, time.time())
        query = sa.select(content).where(page == self._id(listing), recent)
        return self._run(lambda tx: msgspec.json.decode(tx.execute(query).scalar() or "null", type=TransferPage | None))

    def keep(self, listing: str, page: TransferPage) -> None:
        """Keep a page in place of the previous one, and delete old pages; skip a page with an unreadable row."""
        if page.unreadable:
            return
        key, at = self._id(listing), time.time()
        rows = tuple(Transfer(row.id, row.status, "", sent_at=row.sent_at) for row in page.data)
        content = msgspec.json.encode(TransferPage(rows, page.next_cursor)).decode()
        old = sa.delete(self._table).where((self._table.c.page == key) | (self._table.c.read_at < at - 86_400))
        new = sa.insert(self._table).values(page=key, read_at=at, content=content)
        self._run(lambda tx: (tx.execute(old), tx.execute(new)))

    def _id(self, listing: str) -> str:
        return hashlib.sha256(f"{self._key}\0{listing}".encode()).hexdigest()

    def _run(self, work: Callable[[sa.Connection], T]) -> T | None:
        if (database := self._database) is None:
            return None

        def run() -> T:
            with database.begin() as tx:
                self._table.create(tx, checkfirst=True)
                return work(tx)

        try:
            return start_thread(lambda: database.retry(run)).result(MAX_SECONDS)
        except Exception as error:
            self._database = None
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            log.warning("Triggerers cannot share polls for up to an hour: %s", text)
            return None


def start_thread(work: Callable[[], T]) -> Future[T]:
    """Run a function in a thread that keeps neither an event loop nor the process from ending; return its result."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it from now on

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="outbound-transfer-poll", daemon=True).start()
    return future
