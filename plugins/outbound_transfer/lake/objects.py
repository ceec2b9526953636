"""Pages of the event feed as objects in a folder: a page is one object, which is put whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from outbound_transfer.lake.object_folder import ADDRESS, FeedFolder, FeedPosition, PageName
from outbound_transfer.lake.object_page import PageHeader, encode_page
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.lake.rows import SCHEMA, page_table
from outbound_transfer.protocol.events import Page
from outbound_transfer.warehouse.destination import CLAIM, EventDestination, PollRecord, check_address
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now


class ObjectEventDestination(EventDestination):
    """The objects of one feed. Polls that load nothing are not recorded.

    :param account: name of the feed's account, whose folder has the pages.
    :param clock: the current time, for ``loaded_at``.
    :raises InvalidName: the account's name is empty or too long.
    """

    def __init__(self, store: ObjectStore, account: str, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.account, self.now = account, clock
        self.folder = FeedFolder(store, account)
        self._resets, self._cursor = 0, 0
        self._last: PageHeader | None = None

    def get_or_create_cursor(self) -> int:
        position = self.folder.read_position()
        self.folder.delete(position.listing.void)  # what a reset left that was killed, or a reader that it overtook
        if not position.listing.pages:
            self.folder.store.check_create()
        self.folder.note_loaded(position.listing)
        self.go_on_from(position)
        return position.cursor

    def go_on_from(self, position: FeedPosition) -> None:
        """Put the next page after this position."""
        self._resets, self._last, self._cursor = position.listing.resets, position.last, position.cursor

    def bind_account(self, address: str) -> None:
        self.folder.write_note(ADDRESS, msgspec.json.encode(address))
        check_address(self.account, self.folder.read_address(), address, f"delete {self.folder.note_path(ADDRESS)}")

    def load_page(self, page: Page) -> int:
        if page.cursor != self._cursor:
            raise self.folder.moved()
        if page.next_cursor == page.cursor:  # no lines, and nothing that the next run would need
            return 0
        table, rejected = page_table(self.account, page, self.now()), len(page.rejected)
        excess = page.next_cursor - page.cursor - len(page.events) - rejected
        self._append(table, page.next_cursor, has_more=page.has_more, rejected=rejected, excess=excess)
        return int(table.num_rows) - rejected

    def skip_to(self, cursor: int) -> None:
        """Put a page without rows, after which the feed goes on from ``cursor``.

        :raises CursorMoved: another reader has put a page.
        """
        self._append(SCHEMA.empty_table(), cursor, has_more=True)

    def _append(self, table: pa.Table, cursor_to: int, *, has_more: bool, rejected: int = 0, excess: int = 0) -> None:
        now, events, last = format_timestamp(self.now()), table.num_rows - rejected, self._last
        newest = pc.max(table["occurred_at"]).as_py()
        occurred_at = [last.occurred_at if last else None, format_timestamp(newest) if newest else None]
        header = PageHeader(
            account=self.account,
            cursor_from=self._cursor,
            cursor_to=cursor_to,
            has_more=has_more,
            polled_at=now,
            events=events + (last.events if last else 0),
            rejected=rejected + (last.rejected if last else 0),
            greatest_excess=max(excess, self.greatest_excess()),
            loaded_at=now if events else last.loaded_at if last else None,
            occurred_at=max(filter(None, occurred_at), default=None),
        )
        self.folder.create_page(PageName(self._resets, self._cursor), encode_page(header, table))
        self._last, self._cursor = header, cursor_to

    def log_poll(self, poll: PollRecord) -> None:
        if poll.action == CLAIM and poll.cursor_to is not None:
            self.folder.write_note(f"{self._claims(poll.cursor_from)}{poll.cursor_to:020d}.json", b"{}")

    def _claims(self, position: int) -> str:
        # After a reset the same responses come again, so that the claims before it are invalid.
        return f"claim-{self._resets:06d}-{position:020d}-"

    def greatest_excess(self) -> int:
        return self._last.greatest_excess if self._last else 0

    def greatest_claim(self, position: int) -> int:
        pattern = re.compile(re.escape(self._claims(position)) + r"(\d{20})\.json", re.ASCII)
        claims = map(pattern.fullmatch, self.folder.list_notes())
        return max((int(match[1]) for match in claims if match), default=0)
