"""The event feed as objects in a folder: a page is one object, created if it is not there, and never changed but by an
erasure of personal data.

A page's name is the cursor that it was read with. The greatest name is the newest page, whose header has the feed's
cursor. A reset deletes the pages from a cursor on, the newest first; a reader that it overtakes finds that the page
before its own is gone, and takes its own back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from outbound_transfer.client.events import Page
from outbound_transfer.lake.object_page import PageHeader, encode_page, read_header
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.lake.rows import SCHEMA, ErasedLine, decode_erased, encode_erased, erase_row, page_table
from outbound_transfer.store.personal_data import AddressSearch
from outbound_transfer.warehouse.destination import EventDestination, check_account, check_address
from outbound_transfer.warehouse.errors import CursorMoved, InvalidCursor, InvalidName, WarehouseBusy
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now

#: Maximum number of bytes of an account's name in a path: file systems limit a name to 255.
_MAX_ACCOUNT_BYTES: Final = 240

#: Number of times that the folder is listed before pages are said to be missing: others may have put or deleted some.
_MAX_LISTINGS: Final = 3

#: Name of the object that is there once a run has found pages, so that the feed does not start anew without them.
_LOADED: Final = "loaded"

#: Name of the object with the site address that the account's name is bound to.
_ADDRESS: Final = "address"

#: Beginning of the name of an object with the lines whose content was erased.
_ERASED: Final = "erased-"

_PAGE: Final = re.compile(r"page-(\d{20})\.parquet", re.ASCII)


class ObjectEventDestination(EventDestination):
    """The objects of one feed. Polls that load nothing are not recorded.

    :param account: name of the feed's account, whose folder has the pages.
    :param clock: the current time, for ``loaded_at``.
    :raises InvalidName: the account's name is empty or too long.
    """

    def __init__(self, store: ObjectStore, account: str, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.store, self.account, self.now = store, account, clock
        self._pages = account_folder(account)
        self._notes = f"_feed/{self._pages}"
        self._lock = f"{self._notes}/lock"
        self._newest = PageHeader(account=account)
        self._erased: dict[str, set[ErasedLine]] = {}

    def get_or_create_cursor(self) -> int:
        self._newest = self.read_newest()
        if not self._newest.cursor_to:
            self.store.check_create()
        elif not self._is_loaded():
            self._write_note(_LOADED)
            if self.read_page(self._newest.cursor_from) != self._newest:  # a reset has deleted all pages since
                self.store.delete(f"{self._notes}/{_LOADED}")
                raise self._moved()
        return self._newest.cursor_to

    # -- pages

    def page_name(self, cursor: int) -> str:
        """Return the name of the page that is read with a cursor; names sort as the pages were read."""
        return f"{self._pages}/page-{cursor:020d}.parquet"

    def list_pages(self) -> tuple[list[int], list[str]]:
        """Return the cursors in the names of the pages, in their order; and the names that are not of pages."""
        found = [(name, _PAGE.fullmatch(name)) for name in self.store.list_names(self._pages)]
        return [int(match[1]) for _, match in found if match], [name for name, match in found if not match]

    def read_page(self, cursor: int) -> PageHeader | None:
        """Return a page's header; None if it is gone.

        :raises InvalidCursor: the object is not such a page.
        :raises SchemaTooNew: a newer version of this package wrote it.
        """
        content = self.store.read(self.page_name(cursor))
        return None if content is None else self.decode_page(cursor, content)

    def decode_page(self, cursor: int, content: bytes) -> PageHeader:
        """Return the header of a page's object; raise what :meth:`read_page` raises."""
        return read_header(content, self.store.path(self.page_name(cursor)), self.account, cursor)

    def read_newest(self) -> PageHeader:
        """Return the header of the newest page; a header without a page if none was ever loaded.

        :raises InvalidCursor: pages were loaded, and the newest of them are gone, or one of the newest two is damaged.
        """
        for _ in range(_MAX_LISTINGS):
            if newest := self._find_newest():
                return newest
        raise InvalidCursor(
            f"{self.store.path(self._pages)}: the feed's newest pages were there and are gone, or the one before the "
            "newest is. Restore them; or run `feed reset --to N`, N being where to go on"
        )

    def _find_newest(self) -> PageHeader | None:
        pages, _ = self.list_pages()
        if not pages:
            return None if self._is_loaded() else PageHeader(account=self.account)
        newest = self.read_page(pages[-1])
        before = self.read_page(pages[-2]) if pages[1:] else PageHeader(account=self.account)
        # Otherwise it may be of a reader that was killed before it saw that a reset had overtaken it.
        return newest if newest and before and before.cursor_to == newest.cursor_from else None

    def load_page(self, page: Page) -> int:
        if page.cursor != self._newest.cursor_to:
            raise self._moved()
        if page.next_cursor == page.cursor:  # no lines, and nothing that the next run would need
            return 0
        table = page_table(self.account, page, self.now(), self._read_erased())
        rejected = len(page.rejected)
        self._append(table, page.next_cursor, has_more=page.has_more, rejected=rejected)
        return int(table.num_rows) - rejected

    def skip(self, cursor_from: int, cursor_to: int) -> None:
        """Put a page without rows, after which the feed goes on from another cursor.

        :raises CursorMoved: the feed's cursor is not ``cursor_from``.
        """
        if self.get_or_create_cursor() != cursor_from:
            raise self._moved()
        self._append(SCHEMA.empty_table(), cursor_to, has_more=True)

    def _append(self, table: pa.Table, cursor_to: int, *, has_more: bool, rejected: int = 0) -> None:
        now, events, before = format_timestamp(self.now()), table.num_rows - rejected, self._newest
        newest = pc.max(table["occurred_at"]).as_py()
        occurred_at = [before.occurred_at, format_timestamp(newest) if newest else None]
        header = PageHeader(
            account=self.account,
            cursor_from=before.cursor_to,
            cursor_to=cursor_to,
            has_more=has_more,
            polled_at=now,
            events=before.events + events,
            rejected=before.rejected + rejected,
            loaded_at=now if events else before.loaded_at,
            occurred_at=max(filter(None, occurred_at), default=None),
        )
        self._create(self.page_name(header.cursor_from), encode_page(header, table))
        if header.cursor_from > 0 and self.read_page(before.cursor_from) != before:  # a reset has deleted it
            self.store.delete(self.page_name(header.cursor_from))
            raise self._moved()
        self._newest = header

    def _create(self, name: str, content: bytes) -> None:
        """Create an object.

        :raises CursorMoved: another one has its name.
        """
        try:
            self.store.create(name, content)
        except Exception as error:  # whatever it is, the object may be there
            found = self.store.read(name)
            if found is None and not isinstance(error, FileExistsError):
                raise
            if found != content:
                raise self._moved() from error

    def delete_pages(self, start: int) -> None:
        """Delete the pages from a cursor on, and those that readers put there meanwhile."""
        while pages := [cursor for cursor in self.list_pages()[0] if cursor >= start]:
            for cursor in reversed(pages):
                self.store.delete(self.page_name(cursor))
        if not any(cursor < start for cursor in self.list_pages()[0]):  # a reader may put one, and take it back
            self.store.delete(f"{self._notes}/{_LOADED}")

    def _moved(self) -> CursorMoved:
        return CursorMoved(f"the cursor of the feed {self.account} has moved meanwhile")

    # -- personal data

    def read_rows(self, cursor: int) -> tuple[PageHeader, list[dict[str, Any]]] | None:
        """Return a page; None if it is gone. Raises what :meth:`read_page` raises."""
        content = self.store.read(self.page_name(cursor))
        if content is None:
            return None
        header = self.decode_page(cursor, content)
        return header, pq.read_table(pa.BufferReader(content)).to_pylist()

    def erase(self, cursor: int, search: AddressSearch) -> int:
        """Erase an address from a page, under :meth:`erasing`; return the number of rows that had it.

        Before the page is replaced, a note says which lines are erased, so that they are not stored again.
        """
        header, rows = self.read_rows(cursor) or (None, [])
        erased = [erase_row(row, search) for row in rows]
        if header and any(erased):
            text = encode_erased(found[1] for found in erased if found)
            self._write_note(f"{_ERASED}{hashlib.sha256(text.encode()).hexdigest()}", text.encode())
            new = [found[0] if found else row for found, row in zip(erased, rows, strict=True)]
            table = pa.Table.from_pylist(new, schema=SCHEMA)
            self.store.replace(self.page_name(cursor), encode_page(header, table))
        return sum(map(bool, erased))

    def _read_erased(self) -> set[ErasedLine]:
        """Return the lines whose content was erased."""
        for name in self.store.list_names(self._notes):
            if name.startswith(_ERASED) and name not in self._erased:  # a note never changes
                self._erased[name] = decode_erased(self.store.read(f"{self._notes}/{name}") or b"[]")
        return set().union(*self._erased.values())

    # -- notes: objects beside the pages

    @contextmanager
    def erasing(self) -> Iterator[None]:
        """Keep other erasures and resets from changing pages: an erasure would put back what they have changed.

        :raises WarehouseBusy: another erasure is under way.
        """
        try:
            self.store.create(self._lock, b"{}")
        except FileExistsError:
            raise self._busy() from None
        try:
            yield
        finally:
            self.store.delete(self._lock)

    def check_erasure(self) -> None:
        """Check that no erasure changes pages.

        :raises WarehouseBusy: one does, or was killed.
        """
        if self.store.read(self._lock) is not None:
            raise self._busy()

    def _busy(self) -> WarehouseBusy:
        return WarehouseBusy(
            f"an erasure changes the pages of the feed {self.account}. Wait for it; if it was killed, delete "
            f"{self.store.path(self._lock)}"
        )

    def _write_note(self, name: str, content: bytes = b"{}") -> None:
        """Create an object, unless it is there."""
        with suppress(FileExistsError):
            self.store.create(f"{self._notes}/{name}", content)

    def _is_loaded(self) -> bool:
        return self.store.read(f"{self._notes}/{_LOADED}") is not None

    def bind_account(self, address: str) -> None:
        self._write_note(_ADDRESS, address.encode())
        check_address(self.account, self.read_address(), address, f"delete {self.store.path(self._notes)}/{_ADDRESS}")

    def read_address(self) -> str | None:
        """Return the site address that the account's name is bound to; None if it is not bound."""
        found = self.store.read(f"{self._notes}/{_ADDRESS}")
        return None if found is None else found.decode(errors="replace")


def account_folder(account: str) -> str:
    """Return the name of an account's folder, as Hive's partitions are named.

    :raises InvalidName: no file system can store the account's name.
    """
    check_account(account)
    try:
        encoded = quote(account, safe="")
    except UnicodeEncodeError:
        raise InvalidName("the account's name holds an unpaired surrogate, which UTF-8 cannot encode") from None
    if len(encoded) > _MAX_ACCOUNT_BYTES:
        raise InvalidName(f"the account's name takes {len(encoded)} bytes in a path, and {_MAX_ACCOUNT_BYTES} can be")
    return f"account={encoded}"


def list_accounts(store: ObjectStore) -> list[str]:
    """Return the accounts whose feeds have been read."""
    names = {*store.list_names(), *store.list_names("_feed")}
    return sorted(unquote(name.partition("=")[2]) for name in names if name.startswith("account="))
