"""Flows of several calls. Each is written once; :mod:`outbound_transfer.client.drivers` runs it, sync or async."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Generic, TypeVar

from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.addresses import normalize_text
from outbound_transfer.protocol.errors import (
    CallError,
    FileConflict,
    InvalidDelivery,
    InvalidState,
    MalformedResponse,
    NotFound,
    SourceChanged,
    WrongTransfer,
)
from outbound_transfer.protocol.identity import Identity, KnownIdentity, identity_of, known_identity_of, may_be_equal
from outbound_transfer.protocol.messages import (
    Call,
    Flow,
    Reconciliation,
    Response,
    Upload,
    decode_response,
)
from outbound_transfer.protocol.models import (
    File,
    NewTransfer,
    Transfer,
    TransferPage,
    UnreadableRow,
    has_offset,
    to_epoch,
)
from outbound_transfer.protocol.retry_rules import REPEAT_EFFECTS, RepeatEffect

T = TypeVar("T")

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


class SafeCall(Generic[T]):
    """One call that is safe to repeat. Calling the object returns the flow of the next attempt, over raw responses.

    It remembers whether an earlier attempt may have been applied and reconciles that before it repeats a call that must
    not happen twice (docs/guarantees.md#sent-at-most-once). So no caller can send twice, whatever fails in between.

    :param note_in_doubt: called with True right before each request, as it may be applied from then on, and with False
        once an error has said that none was. Must not raise.
    :ivar in_doubt: whether the last attempt may have been applied and is not reconciled yet.
    :ivar was_in_doubt: whether any attempt was in doubt. Its request may still be under way, and be applied after a
        read that showed no effect.
    """

    def __init__(self, call: Call[T], note_in_doubt: Callable[[bool], object] = lambda in_doubt: None) -> None:  # noqa: ARG005
        self.call = call
        self._note_in_doubt = note_in_doubt
        self.in_doubt = False
        self.was_in_doubt = False
        self._in_doubt_attempts = 0
        self._is_under_way = False

    @property
    def may_be_applied(self) -> bool:
        """Whether a request was made that was not refused: it was applied, or may be, even after an interrupt."""
        return self._is_under_way or self.was_in_doubt

    def __call__(self, before_request: Callable[[], object] = lambda: None) -> Flow[T]:
        """Return the flow of the next attempt.

        :param before_request: called right before the request itself, if one is made. May raise, but no ``CallError``,
            which is taken for one of the call.
        """
        try:
            return (yield from self._attempt(before_request))
        except CallError as error:
            self.in_doubt = error.in_doubt = self.in_doubt or error.in_doubt
            self.was_in_doubt = error.was_in_doubt = self.was_in_doubt or self.in_doubt
            if self._is_under_way and not self.was_in_doubt:
                self._note_in_doubt(False)
            self._is_under_way = False
            if self.was_in_doubt and self.call.reconciliation:
                error.in_doubt_warning = self.call.reconciliation.warning
            raise

    def _attempt(self, before_request: Callable[[], object]) -> Flow[T]:
        if (
            self.in_doubt
            and self.call.reconciliation
            and (applied := (yield from self._find_applied_result(self.call.reconciliation))) is not None
        ):
            return applied
        before_request()
        self._is_under_way = True
        self._note_in_doubt(True)
        try:
            return (yield from self._counted_attempt())
        except InvalidState:
            # The code has two causes (service-api.md, R37): only a read distinguishes "already sent" from "no files".
            if (
                self.call.reconciliation is None
                or (applied := (yield from self._find_applied_result(self.call.reconciliation, is_rejected=True)))
                is None
            ):
                raise
            return applied
        except NotFound:
            if self.in_doubt and REPEAT_EFFECTS[self.call.operation] is RepeatEffect.NOT_FOUND:
                return None  # type: ignore[return-value]  # these calls have no result
            raise

    def _counted_attempt(self) -> Flow[T]:
        try:
            return (yield from _perform(self.call, self.in_doubt))
        except CallError as error:
            self._in_doubt_attempts += error.in_doubt
            error.is_last = self._in_doubt_attempts == self.call.max_in_doubt_attempts
            raise

    def _find_applied_result(self, reconciliation: Reconciliation[T], *, is_rejected: bool = False) -> Flow[T | None]:
        self.in_doubt = True  # until the query has succeeded
        response = yield from _perform(reconciliation.query)
        applied = reconciliation.applied_result(response)
        if applied is None and is_rejected and reconciliation.contradicts(response):
            raise MalformedResponse(
                f"{self.call.operation.value}: rejected as already applied, but a read shows no effect"
            )
        self.in_doubt = False
        return applied


def _perform(call: Call[T], after_in_doubt_attempt: bool = False) -> Flow[T]:
    response: Response = yield call
    return decode_response(call, replace(response, after_in_doubt_attempt=after_in_doubt_attempt))


def create_draft(new: NewTransfer) -> Flow[Transfer]:
    """Create a draft and check that the response shows it.

    :raises WrongTransfer: the response shows another transfer than requested.
    """
    transfer: Transfer = yield endpoints.create_transfer(new)
    if not transfer.is_draft or transfer.files or identity_of(transfer) != identity_of(new):
        raise WrongTransfer(
            f"create: the response shows transfer {transfer.id} ({transfer.status}), which is not the requested draft"
        )
    return transfer


def attach(transfer_id: str, upload: Upload, *, check_unchanged: Callable[[], None]) -> Flow[File]:
    """Attach one file to a draft, so that the draft has exactly its bytes (docs/guarantees.md#sent-as-intended).

    :param check_unchanged: raises :class:`SourceChanged` if the source is no longer what ``upload`` describes.
    :raises FileConflict: the draft has a file of this name, which this call did not attach.
    :raises SourceChanged: the source has changed; the file's record was removed from the draft.
    """
    attached: endpoints.AttachResult = yield endpoints.attach_file(transfer_id, upload)
    file, is_same = attached.file, (attached.file.name, attached.file.size) == (upload.name, upload.size)
    if not (attached.is_new or (attached.after_in_doubt_attempt and is_same)):
        raise FileConflict(
            f"{upload.name!r}: the draft {transfer_id} already has {file.name!r} ({file.size} bytes), which this "
            "delivery did not attach. Remove that file, or use another draft."
        )
    try:
        check_unchanged()
        if not is_same:
            raise SourceChanged(
                f"{upload.name!r} has {upload.size} bytes, but the service stored {file.name!r} with {file.size} bytes"
            )
    except SourceChanged:
        # The service stores the declared number of bytes and reports success, so this record must be removed.
        yield endpoints.remove_file(transfer_id, file.id)
        raise
    return file


class DiscardOutcome(Enum):
    """What became of a draft that was to be discarded (service-api.md, R35)."""

    REMOVED = "the draft is removed"
    NOT_FOUND = "the connection's key sees no such transfer: it was removed before, or is another user's"
    SENT = "it was sent, so it is left alone"


def discard_draft(transfer_id: str) -> Flow[DiscardOutcome]:
    """Discard a draft, if it still is one."""
    try:
        yield endpoints.discard_transfer(transfer_id)
    except InvalidState:
        return DiscardOutcome.SENT
    except NotFound:
        return DiscardOutcome.NOT_FOUND
    return DiscardOutcome.REMOVED


def find_transfer(transfer_id: str) -> Flow[Transfer | None]:
    """Return a transfer, or None if it does not exist (any more), for example a discarded draft."""
    try:
        transfer: Transfer = yield endpoints.get_transfer(transfer_id)
    except NotFound:
        return None
    return transfer


def find_sent(
    wanted: Identity,
    names: Collection[str] | None,
    since: float,
    *,
    sizes: Mapping[str, int] | None = None,
    is_like: Callable[[KnownIdentity], bool] = lambda known: False,  # noqa: ARG005
    is_other: Callable[[Transfer | UnreadableRow], bool] = lambda row: False,  # noqa: ARG005
    unlike: set[str] | None = None,
) -> Flow[Transfer | None]:
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

    def read(row: Transfer | UnreadableRow) -> Flow[Transfer | None]:
        if row.id in unlike or is_other(row):
            return None
        found: Transfer | None = yield from _read_row(row, matches, since)
        if found is not None and _may_have_files(found, names, sizes):
            return found
        unlike.add(row.id)
        return None

    listed: set[str] = set()
    for _ in range(_MAX_LISTINGS):
        listing = _Listing(since, listed)
        if found := (yield from listing.find(matches, read)):
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
        matches: Callable[[Transfer | UnreadableRow], bool],
        read: Callable[[Transfer | UnreadableRow], Flow[Transfer | None]],
    ) -> Flow[Transfer | None]:
        """Return what the first row that matches is found to be; None if there is none.

        :raises MalformedResponse: the listing does not end.
        """
        cursor: str | None = None
        cursors: set[str] = set()
        for _ in range(_MAX_PAGES):
            page: TransferPage = yield endpoints.list_transfers(cursor=cursor)
            self.pages += 1
            for row in self._possible_rows(page):
                if matches(row) and (found := (yield from read(row))):
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
    row: Transfer | UnreadableRow, matches: Callable[[Transfer], bool], since: float
) -> Flow[Transfer | None]:
    """Fetch the transfer of a row, because rows of a listing have no files (service-api.md, R11).

    :return: the transfer, with its files if they are known; None if it is not the wanted one.
    :raises MalformedResponse: neither the row nor its transfer can be read.
    """
    found: Transfer | None = None
    failure: Exception | None = None
    try:
        found = yield from find_transfer(row.id)
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
