"""The properties of an Iceberg table that are the state of its feeds: cursors and site addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from outbound_transfer.client.events import Page
from outbound_transfer.store.errors import InvalidCursor

_PREFIX: Final = "outbound-transfer."
_CURSOR: Final = f"{_PREFIX}cursor."
_FEED: Final = f"{_PREFIX}feed."

#: The property with the site address that an account's name is bound to, before the name.
ADDRESS: Final = f"{_PREFIX}address."

#: The name in a snapshot's summary of what identifies the commit.
COMMIT: Final = f"{_PREFIX}commit"


class FeedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one account's feed; every change of it is committed with a snapshot.

    :ivar commit: identifies the commit that wrote this state.
    :ivar has_more: whether more came after the last page; None if none is loaded.
    """

    cursor: int = 0
    commit: str = ""
    updated_at: str | None = None
    has_more: bool | None = None

    def after(self, page: Page) -> FeedState:
        """Return the state after a page is loaded."""
        return msgspec.structs.replace(self, cursor=page.next_cursor, has_more=page.has_more)

    def as_properties(self, account: str) -> dict[str, str]:
        """Return the properties that :func:`read_state` reads; the cursor alone is for people."""
        return {f"{_CURSOR}{account}": str(self.cursor), f"{_FEED}{account}": msgspec.json.encode(self).decode()}


def list_accounts(properties: Mapping[str, str]) -> list[str]:
    """Return the accounts whose feeds have been read into the table."""
    prefixes = (_CURSOR, _FEED)  # either may have been removed by hand
    return sorted({name[len(each) :] for name in properties for each in prefixes if name.startswith(each)})


def read_state(metadata: TableMetadata, account: str) -> FeedState | None:
    """Return the state of a feed; None if the feed has never been read.

    :raises InvalidCursor: somebody changed a property, or rolled the rows back and not the properties.
    """
    properties = metadata.properties
    cursor, feed = (properties.get(f"{name}{account}") for name in (_CURSOR, _FEED))
    if cursor is None and feed is None:
        return None
    try:
        state = msgspec.json.decode(feed or "", type=FeedState)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidCursor(
            f"the table's property '{_FEED}{account}' is not as this package writes it ({error}): "
            "`feed rebuild-cursor` sets the cursor by the rows"
        ) from error
    if cursor != str(state.cursor):
        raise InvalidCursor(
            f"the table's property '{_CURSOR}{account}' is {cursor or 'missing':.100}, and the last commit set it "
            f"to {state.cursor}: somebody changed it. `feed rebuild-cursor` sets the cursor by the rows, "
            "`feed reset --to` to where you say"
        )
    if _is_rolled_back(metadata, state.commit):
        raise InvalidCursor(
            f"the table was rolled back or replaced: its properties have the cursor {cursor} of the feed {account}, "
            "and its rows are those of another time. `feed rebuild-cursor` sets the cursor by the rows"
        )
    return state


def find_commit(metadata: TableMetadata, commit_id: str) -> Snapshot | None:
    """Return the last snapshot of a commit; None if it is not there, or has expired."""
    found = (each for each in reversed(metadata.snapshots) if each.summary and each.summary[COMMIT] == commit_id)
    return next(found, None)


def _is_rolled_back(metadata: TableMetadata, commit_id: str) -> bool:
    """Return whether the table's rows are certainly without a commit. One that has expired proves nothing."""
    commit, lineage = find_commit(metadata, commit_id), list(ancestors_of(metadata.current_snapshot(), metadata))
    if commit is None or not lineage:
        return not lineage  # an expiry leaves the newest snapshot
    # Others in between may have expired: then the lineage that is known ends after the commit.
    return commit not in lineage and (lineage[-1].sequence_number or 0) < (commit.sequence_number or 0)
