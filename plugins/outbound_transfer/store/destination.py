"""Where the event feed is loaded, inspected and repaired: what every kind of destination has in common.

A SQL database (:mod:`.events`) commits a page in a transaction, a table of the lake in a snapshot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from outbound_transfer.client.events import MAX_CURSOR, Page
from outbound_transfer.store import errors
from outbound_transfer.wording import pluralize

#: Characters of an account's name, and of a note.
MAX_ACCOUNT_LENGTH, MAX_NOTE = 250, 500


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


class FeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of reading a feed. A destination may not know all of it.

    :ivar updated_at: when the cursor was last written; ``page_at``: when the last page was loaded.
    :ivar caught_up: whether the last loaded page had no more after it.
    :ivar polled_at: of the last poll, like the HTTP ``status`` and the ``note``.
    :ivar events: their number, like ``rejected``; None if they were not counted.
    :ivar loaded_at: of the newest event, like ``occurred_at``.
    """

    account: str
    address: str | None
    cursor: int
    updated_at: datetime | None = None
    page_at: datetime | None = None
    caught_up: bool | None = None
    polled_at: datetime | None = None
    status: int | None = None
    note: str | None = None
    events: int | None = None
    rejected: int | None = None
    loaded_at: datetime | None = None
    occurred_at: datetime | None = None


def check_account(account: str) -> None:
    """Raise ``InvalidName`` if an account's name is empty or too long."""
    if not 0 < len(account) <= MAX_ACCOUNT_LENGTH:
        raise errors.InvalidName(f"an account's name has 1 to {MAX_ACCOUNT_LENGTH} characters, not {len(account)}")


def check_address(account: str, bound: str | None, address: str, remedy: str) -> None:
    """Raise ``OtherAccount`` if an account's name is bound to another site address; ``remedy``: how to free it."""
    if bound not in (None, address):
        raise errors.OtherAccount(
            f"'{account}' is bound to the account {bound} here, but the connection leads to {address}. Nothing was "
            f"loaded. Correct the connection, or set another account name. Only if {bound} has moved to {address}, "
            f"{remedy}: the next run binds the name again"
        )


def check_rejected(page: Page, max_rejected: int | None) -> None:
    """Raise ``TooManyRejectedLines`` if a page has more rejected lines than ``max_rejected`` (None: no limit)."""
    if max_rejected is not None and len(page.rejected) > max_rejected:
        first = page.rejected[0]
        raise errors.TooManyRejectedLines(
            f"{pluralize(len(page.rejected), 'line')} of the page after cursor {page.cursor} cannot be read as events, "
            f"but max_rejected is {max_rejected}; the page was not loaded. The first is line "
            f"{first.line_number}: {first.reason}. Inspect the feed; to store such lines raw, raise max_rejected."
        )


class EventDestination(ABC):
    """The events, rejected lines, polls and cursor of one account's feed; several accounts share a destination.

    Inspection changes nothing. It and repair raise ``UnknownFeed`` if the feed was never read; all methods that read
    the cursor raise ``InvalidCursor`` if the stored value is not one.
    """

    account: str

    @abstractmethod
    def get_or_create_cursor(self) -> int:
        """Return the cursor; create what is needed first. A new feed starts at 0."""

    @abstractmethod
    def bind_account(self, address: str) -> None:
        """Bind the account's name to a site address, after :meth:`get_or_create_cursor`.

        :raises OtherAccount: it is bound to another one.
        """

    @abstractmethod
    def load_page(self, page: Page, max_rejected: int | None = None) -> Loaded:
        """Store a page, its cursor and its poll: all of it, or nothing.

        :param max_rejected: number of rejected lines that it may have; None for no limit.
        :raises CursorMoved: the stored cursor is not the one that the page was read with.
        :raises TooManyRejectedLines: it has more.
        :raises PageRefused: none of its events can be stored.
        """

    def log_poll(self, poll: PollRecord) -> None:  # noqa: B027  # a lake records none
        """Record a poll that loaded nothing."""

    @abstractmethod
    def read_address(self) -> str | None:
        """Return the site address that the account's name is bound to; None if it is not bound."""

    @abstractmethod
    def read_cursor(self) -> int:
        """Return the cursor."""

    @abstractmethod
    def status(self, *, counts: bool = True) -> FeedStatus:
        """Return the state of reading; with ``counts``, read all events for their number and the newest."""

    @abstractmethod
    def find_problems(self) -> Iterator[str]:
        """Yield a sentence for each problem in the stored data."""

    @abstractmethod
    def reset(self, to: int, *, expected: int | None = None) -> tuple[int | None, int]:
        """Set the cursor; return the cursor before (None if it was not valid) and after.

        A destination without keys deletes the pages that are loaded again, so the cursor may be before ``to``.

        :param expected: the cursor that it was decided at; a step back from there may be one forward by now.
        :raises InvalidCursor: ``to`` is not a cursor.
        :raises CursorMoved: the cursor is not ``expected``, or a reader loaded a page at the same time.
        """

    @abstractmethod
    def rebuild_cursor(self) -> tuple[int | None, int]:
        """Set the cursor by the stored rows; return it before (None if invalid) and after. Nothing is loaded twice."""

    def _check_move(self, position: int | None, to: int, expected: int | None) -> None:
        if not 0 <= to <= MAX_CURSOR:  # service-api.md, R43
            raise errors.InvalidCursor(f"a cursor must be a whole number from 0 to {MAX_CURSOR}, not {to}")
        if expected is not None and position != expected:
            found = "not valid" if position is None else position
            raise errors.CursorMoved(
                f"the cursor of the feed {self.account} is no longer {expected}, it is {found}: a run or another "
                "command changed it. This command changed nothing. Check `feed status`, and repeat it if it is "
                "still right"
            )

    def _unknown_feed(self, where: str, known: Sequence[str]) -> errors.UnknownFeed:
        hint = f"it has: {', '.join(known)}" if known else "no feed has been read here yet"
        return errors.UnknownFeed(f"the {where} has no feed {self.account}; {hint}")
