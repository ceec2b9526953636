"""Find a sent transfer by what it holds, in the listing of the service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from outbound_transfer.protocol.addresses import normalize_text
from outbound_transfer.protocol.errors import InvalidDelivery, MalformedResponse
from outbound_transfer.protocol.identity import Identity, KnownIdentity, known_identity_of, may_be_equal
from outbound_transfer.protocol.models import Transfer, TransferPage, UnreadableRow, has_offset, to_epoch

if TYPE_CHECKING:
    from outbound_transfer.client import Client

#: A listing with more pages than this is taken to be endless.
_MAX_PAGES: Final = 10_000

#: How often the listing is read at most: again for what is sent while pages are read.
_MAX_LISTINGS: Final = 10

#: Times of sending outside of these years (2020 to 2099) are taken to be unknown.
_MIN_SENT_AT: Final = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
_MAX_SENT_AT: Final = datetime(2100, 1, 1, tzinfo=UTC).timestamp()

#: A time without an offset from UTC may be the local time of any zone.
_MAX_OFFSET_SECONDS: Final = 14 * 3600

#: So many old rows in a row show that the rows below them are older. A few wrong times do not.
_MIN_OLD_ROWS: Final = 25


def find_sent(
    client: Client,
    wanted: Identity,
    names: Collection[str] | None,
    since: float,
    *,
    sizes: Mapping[str, int] | None = None,
    is_like: Callable[[KnownIdentity], bool] = lambda known: False,  # noqa: ARG005
    is_other: Callable[[Transfer | UnreadableRow], bool] = lambda row: False,  # noqa: ARG005
    unlike: set[str] | None = None,
) -> Transfer | None:
    """Find a sent transfer by its subject, recipients and file names.

    One file name in common is enough: between two tries a source may grow, vanish or be joined by another, and the
    delivery is still the same.

    Pages through ``status=all``, where no row is skipped (service-api.md, R28). Only what a row says rules it out:
    another subject, other recipients (but see ``is_like``), or a time of sending before ``since``. Every other row is
    fetched.

    :param wanted: subject and addresses, by :func:`.identity.identity_of`.
    :param names: names of the files; None if they are unknown, so that any files match.
    :param since: seconds since the epoch; transfers sent earlier are ignored.
    :param sizes: sizes in bytes by name. If given, only a transfer with exactly these files matches, and ``names``
        does not count.
    :param is_like: whether another subject or other recipients do not rule a transfer out.
    :param is_other: whether the transfer of a row is known to be another one. It is asked only about those that may be
        equal.
    :param unlike: ids of transfers that an earlier search for the same has fetched, and takes those of this one: a sent
        transfer never changes (service-api.md, R36), so none is fetched again.
    :return: the transfer; None if this key has sent none. A transfer whose files are unknown matches.
    :raises MalformedResponse: the listing does not end, or a row of it that cannot be read may be the transfer, so it
        does not show what was sent.
    """

    unlike = set() if unlike is None else unlike

    def matches(row: Transfer | UnreadableRow) -> bool:
        known = known_identity_of(row)
        return may_be_equal(known, wanted) or is_like(known)

    def read(row: Transfer | UnreadableRow) -> Transfer | None:
        if row.id in unlike or is_other(row):
            return None
        found: Transfer | None = _read_row(client, row, matches, since)
        if found is not None and _may_have_files(found, names, sizes):
            return found
        unlike.add(row.id)
        return None

    listed: set[str] = set()
    for _ in range(_MAX_LISTINGS):
        listing = _Listing(since, listed)
        if found := listing.find(client, matches, read):
            return found
        if listing.pages == 1:
            return None
        # What is sent while pages are read is on one that is left out, as it would follow those that are old enough.
        listed = listing.ids
    raise MalformedResponse("list: the listing of transfers is another each time, so it does not show what was sent")


class _Listing:
    """One reading of the listing, from the newest row to those that are old enough, or that were listed before.

    :ivar pages: how many were read.
    :ivar ids: of their rows.
    """

    def __init__(self, since: float, listed: Collection[str]) -> None:
        self._since, self._listed, self.ids, self.pages = since, listed, set[str](), 0
        self._consecutive_old_rows = 0

    def find(
        self,
        client: Client,
        matches: Callable[[Transfer | UnreadableRow], bool],
        read: Callable[[Transfer | UnreadableRow], Transfer | None],
    ) -> Transfer | None:
        """Return what the first row that matches is found to be; None if there is none.

        :raises MalformedResponse: the listing does not end.
        """
        cursor: str | None = None
        cursors: set[str] = set()
        for _ in range(_MAX_PAGES):
            page = client.list_transfers(cursor=cursor)
            self.pages += 1
            for row in self._possible_rows(page):
                if matches(row) and (found := read(row)):
                    return found
            self.ids.update(row.id for row in page.rows if row.id)
            is_enough = self._consecutive_old_rows >= _MIN_OLD_ROWS or not self.ids.isdisjoint(self._listed)
            if page.next_cursor is None or is_enough:
                return None
            if page.next_cursor in cursors:
                break
            cursor = page.next_cursor
            cursors.add(cursor)
        raise MalformedResponse("list: the listing of transfers does not end, so it does not show what was sent")

    def _possible_rows(self, page: TransferPage) -> Iterator[Transfer | UnreadableRow]:
        """Yield the rows that may be recent enough."""
        ages = [_is_before(row.sent_at, self._since) for row in page.rows]
        last_recent = max((position for position, is_old in enumerate(ages) if is_old is False), default=-1)
        for position, (row, is_old) in enumerate(zip(page.rows, ages, strict=True)):
            self._consecutive_old_rows = self._consecutive_old_rows + 1 if is_old else 0
            # Rows come newest first (service-api.md, R27), so an old time above a recent one is wrong.
            if not is_old or position < last_recent:
                yield row


def _read_row(
    client: Client, row: Transfer | UnreadableRow, matches: Callable[[Transfer], bool], since: float
) -> Transfer | None:
    """Fetch the transfer of a row, because rows of a listing have no files (service-api.md, R11).

    :return: the transfer, with its files if they are known; None if it is not the wanted one.
    :raises MalformedResponse: neither the row nor its transfer can be read.
    """
    found: Transfer | None = None
    failure: Exception | None = None
    try:
        found = client.find_transfer(row.id)
    except InvalidDelivery as error:  # the row has no usable id
        failure = error
    except MalformedResponse as error:
        if isinstance(row, Transfer):
            raise
        failure = error
    if found is None or not may_be_equal(known_identity_of(found), known_identity_of(row)):
        if isinstance(row, UnreadableRow):
            raise MalformedResponse(_unreadable_row_message(row)) from failure
        return row  # it was sent, and its files are unknown, so it may be the one
    is_old = _is_before(row.sent_at, since) is None and _is_before(found.sent_at, since)
    return found if matches(found) and not is_old else None


def _unreadable_row_message(row: UnreadableRow) -> str:
    return (
        f"list: row {row.position + 1} of a page of the listing, transfer '{row.id or '?'}', cannot be read "
        f"({row.reason}), and its transfer cannot be read by itself. It may be this very delivery, so nothing is sent. "
        "Look in the service's web application whether this was sent. If it was not, trigger a new DAG run."
    )


def _may_have_files(transfer: Transfer, names: Collection[str] | None, sizes: Mapping[str, int] | None) -> bool:
    """Return whether a transfer has the wanted files, or its files are unknown: a sent transfer has some (R36)."""
    if not transfer.files:
        return True
    if sizes is not None:
        wanted = sorted((normalize_text(name), size) for name, size in sizes.items())
        return wanted == sorted((normalize_text(file.name), file.size) for file in transfer.files)
    return names is None or not {normalize_text(file.name) for file in transfer.files}.isdisjoint(
        map(normalize_text, names)
    )


def _is_before(sent_at: str | None, since: float) -> bool | None:
    """Return whether a transfer was sent before ``since``; None if its time is missing, invalid or implausible."""
    timestamp = to_epoch(sent_at)
    if timestamp is None or not _MIN_SENT_AT <= timestamp < _MAX_SENT_AT:
        return None
    return timestamp < (since if has_offset(sent_at) else since - _MAX_OFFSET_SECONDS)
