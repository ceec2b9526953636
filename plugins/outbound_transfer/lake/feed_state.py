"""The properties of an Iceberg table that are the state of its feeds: cursors, newest pages, claims, polls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.events import MAX_CURSOR, Page
from outbound_transfer.warehouse.errors import InvalidCursor, UnusableTable

_PREFIX: Final = "outbound-transfer."
_CURSOR: Final = f"{_PREFIX}cursor."
_FEED: Final = f"{_PREFIX}feed."
_POLL: Final = f"{_PREFIX}poll."
_ADDRESS: Final = f"{_PREFIX}address."

#: The name in a snapshot's summary of what identifies the commit.
COMMIT: Final = f"{_PREFIX}commit"


class FeedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one account's feed; every change of it is committed with a snapshot.

    :ivar cursor: the cursor; None if the feed has never been read.
    :ivar commit: identifies the commit that wrote this state.
    :ivar rows_from: cursor of the newest page that has rows, with the cursor after it in ``rows_to``.
    :ivar excess: how far a loaded page's cursor was beyond the page's lines at most.
    :ivar claim: the cursor of a request, and the greatest cursor that a response to it claimed.
    """

    cursor: int | None = None
    commit: str = ""
    updated_at: str | None = None
    rows_from: int | None = None
    rows_to: int | None = None
    excess: int = 0
    claim: tuple[int, int] | None = None

    def after(self, page: Page) -> FeedState:
        """Return the state after a page is loaded."""
        lines = len(page.events) + len(page.rejected)
        rows = (page.cursor, page.next_cursor) if lines else (self.rows_from, self.rows_to)
        excess = max(self.excess, page.next_cursor - page.cursor - lines)
        return msgspec.structs.replace(
            self, cursor=page.next_cursor, rows_from=rows[0], rows_to=rows[1], excess=excess, claim=None
        )

    def stamped(self, commit: str, updated_at: str) -> FeedState:
        """Return the state as a commit writes it."""
        return msgspec.structs.replace(self, commit=commit, updated_at=updated_at)

    def with_claim(self, cursor_from: int, cursor_to: int) -> FeedState:
        """Return the state after a response claimed a cursor that was not accepted."""
        greatest = max(cursor_to, self.greatest_claim(cursor_from))
        return msgspec.structs.replace(self, claim=(cursor_from, greatest))

    def greatest_claim(self, position: int) -> int:
        """Return the greatest cursor that was claimed for the page after ``position``; 0 if none."""
        return self.claim[1] if self.claim and self.claim[0] == position else 0

    @property
    def committed_at(self) -> datetime | None:
        """When the state was committed; None if that is not known."""
        try:
            committed_at = datetime.fromisoformat(self.updated_at or "")
        except ValueError:
            return None
        return committed_at if committed_at.tzinfo else None

    def as_properties(self, account: str) -> dict[str, str]:
        """Return the properties that :func:`read_state` reads."""
        return {f"{_CURSOR}{account}": str(self.cursor), f"{_FEED}{account}": msgspec.json.encode(self).decode()}


class LastPoll(msgspec.Struct, frozen=True, kw_only=True):
    """The last poll that returned a page; a property, as a row for each would be a file for each."""

    polled_at: str
    status: int
    has_more: bool
    events: int
    rejected: int

    def as_properties(self, account: str) -> dict[str, str]:
        """Return the property that :func:`read_last_poll` reads."""
        return {f"{_POLL}{account}": msgspec.json.encode(self).decode()}


def address_property(account: str) -> str:
    """Return the name of the property with the site address that an account's name is bound to."""
    return f"{_ADDRESS}{account}"


def list_accounts(properties: Mapping[str, str]) -> list[str]:
    """Return the accounts whose feeds have been read into the table."""
    prefixes = (_CURSOR, _FEED)  # either may have been removed by hand
    return sorted({name[len(each) :] for name in properties for each in prefixes if name.startswith(each)})


def read_state(properties: Mapping[str, str], account: str) -> FeedState:
    """Return the state of a feed.

    :raises InvalidCursor: the cursor is not a cursor.
    :raises UnusableTable: the other property is not one of :meth:`FeedState.as_properties`.
    """
    text = properties.get(f"{_CURSOR}{account}")
    state = read_details(properties, account)
    if text is None:
        return msgspec.structs.replace(state, cursor=None)
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_CURSOR)) and int(text) <= MAX_CURSOR):
        raise InvalidCursor(
            f"the table's property '{_CURSOR}{account}' is {text[:100]!r}, which is not a cursor: "
            "`feed rebuild-cursor` sets it by the rows"
        )
    return msgspec.structs.replace(state, cursor=int(text))


def read_details(properties: Mapping[str, str], account: str) -> FeedState:
    """Return what the state has besides the cursor; its ``cursor`` is the one of the last commit.

    :raises UnusableTable: the property is not one of :meth:`FeedState.as_properties`.
    """
    return _decode(properties, f"{_FEED}{account}", FeedState) or FeedState()


def read_last_poll(properties: Mapping[str, str], account: str) -> LastPoll | None:
    """Return the last poll that returned a page; None if there is none.

    :raises UnusableTable: the property is not one of :meth:`LastPoll.as_properties`.
    """
    poll: LastPoll | None = _decode(properties, f"{_POLL}{account}", LastPoll)
    return poll


def _decode(properties: Mapping[str, str], name: str, type_: Any) -> Any:
    text = properties.get(name)
    try:
        return None if text is None else msgspec.json.decode(text, type=type_)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise UnusableTable(
            f"the table's property '{name}' is not as this package writes it ({error}): "
            "remove it; the cursor is another property and stays"
        ) from error
