"""The objects of one feed. Names say which pages are valid, and the greatest of them is the cursor.

A page's name has the number of resets before it, and the cursor that it was read with. A reset creates one object that
says from which cursor on the pages of all earlier names are void; these are deleted then, by the reset or by a later
run. Nothing is ever replaced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import msgspec

from outbound_transfer.lake.object_errors import InvalidObject, MissingPages
from outbound_transfer.lake.object_page import NOT_JSON, PageHeader, read_header
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.protocol.events import MAX_CURSOR
from outbound_transfer.warehouse.destination import check_account
from outbound_transfer.warehouse.errors import CursorMoved, InvalidName

#: Maximum number of bytes of an account's name in a path: file systems limit a name to 255.
_MAX_ACCOUNT_BYTES: Final = 240

#: Number of times that the folder is listed before pages are said to be missing: others may have put or deleted some.
_MAX_LISTINGS: Final = 3

_Cursor: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_CURSOR)]

_Content = TypeVar("_Content")

#: Name of the object with the site address that the account's name is bound to.
ADDRESS: Final = "feed.json"

_PAGE: Final = re.compile(r"page-(\d{6})-(\d{20})\.parquet", re.ASCII)
_RESET: Final = re.compile(r"reset-(\d{6})\.json", re.ASCII)


class PageName(NamedTuple):
    """The name of a page's object; names sort as the pages were read.

    :ivar resets: number of resets before it.
    :ivar cursor: the cursor that the page was read with.
    """

    resets: int
    cursor: int

    def __str__(self) -> str:
        return f"page-{self.resets:06d}-{self.cursor:020d}.parquet"


class Listing(NamedTuple):
    """What the names of a feed's objects say.

    :ivar pages: the valid pages, in the order that they were read.
    :ivar void: pages that a reset made void, and that are not deleted yet.
    :ivar foreign: names that are not of pages.
    :ivar starts: the cursor that each reset set.
    :ivar notes: names of the objects beside the pages.
    """

    pages: list[PageName]
    void: list[PageName]
    foreign: list[str]
    starts: list[int]
    notes: list[str]

    @property
    def resets(self) -> int:
        """The number of resets, also if somebody deleted their objects."""
        return max(len(self.starts), self.pages[-1].resets if self.pages else 0)

    @property
    def is_loaded(self) -> bool:
        """Whether pages were seen since the last reset."""
        return _loaded_note(self.resets) in self.notes


class FeedPosition(NamedTuple):
    """Where a feed is.

    :ivar last: the header of the last valid page; None if there is none.
    """

    listing: Listing
    last: PageHeader | None
    cursor: int


class FeedFolder:
    """The objects of one feed.

    :raises InvalidName: no file system can store the account's name.
    """

    def __init__(self, store: ObjectStore, account: str) -> None:
        self.store, self.account, self._pages = store, account, account_folder(account)
        self._notes = f"_feed/{self._pages}"

    def page_path(self, page: PageName) -> str:
        """Return the path of a page, as errors name it."""
        return self.store.path(f"{self._pages}/{page}")

    # -- reading

    def list_objects(self) -> Listing:
        """List the objects.

        :raises InvalidObject: that of the last reset is damaged.
        """
        names = self.store.list_names(self._pages)
        notes = self.list_notes()  # after the pages: the reset before a page is among them
        starts = self._read_starts(max((int(match[1]) for match in map(_RESET.fullmatch, notes) if match), default=0))
        pages = {name: PageName(int(match[1]), int(match[2])) for name in names if (match := _PAGE.fullmatch(name))}
        limits = {page: min(starts[page.resets :], default=math.inf) for page in pages.values()}
        return Listing(
            pages=sorted(page for page, limit in limits.items() if page.cursor < limit),
            void=sorted(page for page, limit in limits.items() if page.cursor >= limit),
            foreign=[name for name in names if name not in pages],
            starts=starts,
            notes=notes,
        )

    def _read_starts(self, resets: int) -> list[int]:
        if not resets:
            return []
        starts = self._read_note(_reset_note(resets), list[_Cursor]) or []
        if len(starts) != resets:
            raise InvalidObject(
                f"{self.note_path(_reset_note(resets))} has {len(starts)} cursors: restore or delete it"
            )
        return starts

    def read_page(self, page: PageName) -> tuple[PageHeader, bytes] | None:
        """Return a page's header and the whole object; None if it is gone.

        :raises InvalidObject: the object is not such a page.
        :raises SchemaTooNew: a newer version of this package wrote it.
        """
        content = self.store.read(f"{self._pages}/{page}")
        if content is None:
            return None
        return read_header(content, self.page_path(page), self.account, page.cursor), content

    def read_position(self) -> FeedPosition:
        """Return where the feed is.

        :raises MissingPages: pages were loaded since the last reset, and none of them is there.
        :raises InvalidObject: the newest page, or the last reset, is damaged.
        """
        for _ in range(_MAX_LISTINGS):
            listing = self.list_objects()
            found = self.read_page(listing.pages[-1]) if listing.pages else None
            if listing.pages and not found:
                continue
            last = found[0] if found else None
            if last and listing.pages[-1].resets == listing.resets:
                return FeedPosition(listing, last, last.cursor_to)
            if not listing.is_loaded:
                return FeedPosition(listing, last, listing.starts[-1] if listing.starts else 0)
        raise MissingPages(
            f"{self.store.path(self._pages)}: the feed's newest pages were there and are gone. Restore them; or run "
            "`feed reset --to N`, N being where to go on"
        )

    # -- writing

    def create_page(self, page: PageName, content: bytes) -> None:
        """Put a page.

        :raises CursorMoved: another reader has put it, or a reset made it void.
        """
        self._create(f"{self._pages}/{page}", content)
        if self.store.read(f"{self._notes}/{_reset_note(page.resets + 1)}") is not None:
            self.delete([page])
            raise self.moved()

    def create_reset(self, listing: Listing, start: int) -> None:
        """Make the pages from ``start`` on void; delete them.

        :raises CursorMoved: another reset came first.
        """
        resets = listing.resets + 1
        starts = [*listing.starts, *[start] * (resets - len(listing.starts))]
        self._create(f"{self._notes}/{_reset_note(resets)}", msgspec.json.encode(starts))
        self.delete(self.list_objects().void)

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
                raise self.moved() from error

    def delete(self, pages: Iterable[PageName]) -> None:
        """Delete pages, the newest first."""
        for page in sorted(pages, reverse=True):
            self.store.delete(f"{self._pages}/{page}")

    def note_loaded(self, listing: Listing) -> None:
        """Remember that pages were seen since the last reset, so that the feed does not start anew without them."""
        if listing.pages and not listing.is_loaded and listing.pages[-1].resets == listing.resets:
            self.write_note(_loaded_note(listing.resets), b"{}")

    def moved(self) -> CursorMoved:
        """Return the error of a reader whose cursor is not the feed's any more."""
        return CursorMoved(f"the cursor of the feed {self.account} has moved meanwhile")

    # -- notes

    def list_notes(self) -> list[str]:
        """Return the names of the objects beside the pages."""
        return self.store.list_names(self._notes)

    def write_note(self, name: str, content: bytes) -> None:
        """Create an object beside the pages, unless it is there."""
        try:
            self.store.create(f"{self._notes}/{name}", content)
        except FileExistsError:
            return

    def note_path(self, name: str) -> str:
        """Return the path of an object beside the pages, as errors name it."""
        return self.store.path(f"{self._notes}/{name}")

    def read_address(self) -> str | None:
        """Return the site address that the account's name is bound to; None if it is not bound.

        :raises InvalidObject: the object is damaged.
        """
        return self._read_note(ADDRESS, str)

    def _read_note(self, name: str, type_: type[_Content]) -> _Content | None:
        found = self.store.read(f"{self._notes}/{name}")
        try:
            return None if found is None else msgspec.json.decode(found, type=type_)
        except NOT_JSON as error:
            raise InvalidObject(
                f"{self.note_path(name)} is not as this package writes it ({error}): restore or delete it"
            ) from error


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
    names = {name.rstrip("/") for name in (*store.list_names(), *store.list_names("_feed"))}
    return sorted(unquote(name.partition("=")[2]) for name in names if name.startswith("account="))


def _reset_note(resets: int) -> str:
    return f"reset-{resets:06d}.json"


def _loaded_note(resets: int) -> str:
    return f"loaded-{resets:06d}.json"
