"""Where the event feed is loaded: what an ingestion and the command line need of every kind of destination.

A SQL database (:mod:`.events`) commits a page in a transaction, a table of the lake in a snapshot. What they have in
common is decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from outbound_transfer.client.events import MAX_CURSOR, Page
from outbound_transfer.store.errors import (
    CursorMoved,
    InvalidCursor,
    InvalidName,
    OtherAccount,
    TooManyRejectedLines,
    UnknownFeed,
)
from outbound_transfer.wording import pluralize

#: Characters of an account's name.
MAX_ACCOUNT_LENGTH: Final = 250

#: Maximum number of characters of a note.
MAX_NOTE: Final = 500


class PollRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A row of :data:`.tables.FEED_POLLS`, where the fields are described."""

    cursor_from: int
    action: str = "poll"
    status: int | None = None
    events: int = 0
    new_events: int = 0
    rejected: int = 0
    cursor_to: int | None = None
    has_more: bool | None = None
    note: str | None = None


class Loaded(NamedTuple):
    """A page as it was stored, where some of its events may be rejected lines; and the number of new events."""

    page: Page
    new_events: int


def check_account(account: str) -> None:
    """Check that a destination can store the name of an account.

    :raises InvalidName: it is empty or too long.
    """
    if not 0 < len(account) <= MAX_ACCOUNT_LENGTH:
        raise InvalidName(f"an account's name has 1 to {MAX_ACCOUNT_LENGTH} characters, not {len(account)}")


def check_address(account: str, bound: str | None, address: str, remedy: str) -> None:
    """Check that an account's name stands for the account that a connection leads to.

    :param bound: the site address that the name is bound to; None if it is no longer bound.
    :param address: the site address of the connection.
    :param remedy: how the name is freed.
    :raises OtherAccount: it stands for another one.
    """
    if bound not in (None, address):
        raise OtherAccount(
            f"'{account}' is the name of the account {bound} here, and the connection leads to {address}. Nothing was "
            f"loaded. Correct the connection, or name this account otherwise. Only if {bound} has moved to {address}, "
            f"{remedy}: the next run binds the name anew"
        )


def check_cursor(to: int) -> None:
    """Check a cursor that a user sets.

    :raises InvalidCursor: the feed has no such cursor (service-api.md, R43).
    """
    if not 0 <= to <= MAX_CURSOR:
        raise InvalidCursor(f"a cursor is a whole number from 0 to {MAX_CURSOR}, not {to}")


def check_expected(account: str, position: int | None, expected: int | None) -> None:
    """Check that a cursor is still the one that a user saw.

    :param position: the cursor; None if it is not valid.
    :param expected: what the user saw; None if that does not matter.
    :raises CursorMoved: it is another one.
    """
    if expected is not None and position != expected:
        found = "not valid" if position is None else position
        raise CursorMoved(
            f"the cursor of the feed {account} is no longer {expected}, it is {found}: a run or another command "
            "changed it. Nothing was changed now; look at `feed status`, and repeat the command if it is still right"
        )


def check_rejected(page: Page, max_rejected: int | None) -> None:
    """Check how many lines of a page are not stored as events.

    :param max_rejected: None for no limit.
    :raises TooManyRejectedLines: there are more.
    """
    if max_rejected is not None and len(page.rejected) > max_rejected:
        first = page.rejected[0]
        raise TooManyRejectedLines(
            f"{pluralize(len(page.rejected), 'line')} of the page after cursor {page.cursor} cannot be read as events, "
            f"and max_rejected is {max_rejected}; nothing of the page was loaded. The first is line "
            f"{first.line_number}: {first.reason}. Inspect the feed; to store such lines raw, raise max_rejected."
        )


class EventDestination(ABC):
    """The events, rejected lines, polls and cursor of one account's feed.

    :ivar account: name of the feed's account; several accounts share a destination.
    """

    account: str

    @abstractmethod
    def get_or_create_cursor(self) -> int:
        """Return the cursor; create what is needed first. A new feed starts at 0.

        :raises InvalidCursor: the stored value is not a cursor.
        :raises UnsupportedDatabase: it cannot store a page whole or not at all.
        """

    @abstractmethod
    def bind_account(self, address: str) -> None:
        """Bind the account's name to a site address, unless it is bound. Call :meth:`get_or_create_cursor` before.

        :raises OtherAccount: it is bound to another one.
        """

    @abstractmethod
    def load_page(self, page: Page, max_rejected: int | None = None) -> Loaded:
        """Store a page, its cursor and its poll: all of it, or nothing.

        :param max_rejected: number of rejected lines that it may have; None for no limit.
        :raises CursorMoved: the stored cursor is not the one that the page was read with.
        :raises TooManyRejectedLines: it has more, among them events that cannot be stored as such.
        :raises PageRefused: none of its events can be stored.
        """

    def log_poll(self, poll: PollRecord) -> None:  # noqa: B027  # most destinations record none
        """Record a poll that loaded nothing."""


class FeedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where the reading of a feed stands.

    :ivar updated_at: when the cursor was last written.
    :ivar page_at: when the last page was loaded; None if that is not recorded.
    :ivar caught_up: whether the last loaded page had no more after it.
    :ivar polled_at: of the last poll, like the HTTP ``status`` and the ``note``; None if polls are not recorded.
    """

    cursor: int
    updated_at: str | None = None
    page_at: str | None = None
    caught_up: bool | None = None
    polled_at: str | None = None
    status: int | None = None
    note: str | None = None


class FeedStatus(FeedPosition, frozen=True, kw_only=True):
    """The state of a feed at its destination.

    :ivar address: see :meth:`FeedMaintenance.read_address`.
    :ivar loaded_at: of the newest event, like ``occurred_at``.
    """

    account: str
    address: str | None
    events: int
    rejected: int
    loaded_at: str | None
    occurred_at: str | None


class FeedMaintenance(ABC):
    """Inspection and repair of a feed at its destination, for the command line.

    Inspection changes nothing. In a SQL database, every change is recorded in the log of polls. Each method raises
    ``UnknownFeed`` if the feed has never been read.

    :ivar account: name of the feed's account.
    """

    account: str

    @abstractmethod
    def read_address(self) -> str | None:
        """Return the site address that the account's name is bound to; None if it is not bound."""

    @abstractmethod
    def read_cursor(self) -> int:
        """Return the cursor.

        :raises InvalidCursor: the stored value is not a cursor.
        """

    @abstractmethod
    def read_position(self) -> FeedPosition:
        """Return where the reading stands, without counting rows.

        :raises InvalidCursor: the stored value is not a cursor.
        """

    @abstractmethod
    def status(self) -> FeedStatus:
        """Return the feed's cursor, its last poll, and counts of its events."""

    @abstractmethod
    def find_problems(self) -> Iterator[str]:
        """Yield a sentence for each problem of what is stored."""

    @abstractmethod
    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        """Set the cursor; return the cursor before (None if it was not valid) and after.

        A destination without keys deletes the rows that are loaded again. It deletes whole pages, so the cursor may
        be before ``to``: at the start of the page that has it.

        :param expected: the cursor that it was decided at; a step back from there may be one forward by now.
        :raises InvalidCursor: ``to`` is not a cursor.
        :raises CursorMoved: the cursor is not ``expected``, or a reader loaded a page at the same time.
        """

    @abstractmethod
    def rebuild_cursor(self) -> tuple[int | None, int]:
        """Set the cursor by the events that are stored; return the cursor before (None if invalid) and after.

        What is read again is not loaded twice.
        """

    def _unknown_feed(self, where: str, known: Sequence[str]) -> UnknownFeed:
        hint = f"there is: {', '.join(known)}" if known else "no feed has been read here yet"
        return UnknownFeed(f"the {where} has no feed {self.account}; {hint}")
