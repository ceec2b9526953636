"""The chain of a feed's pages: each object is named by the cursor that its page was read with, and has the next one.

The cursor is where the chain finishes. A hint, which may be old, missing or wrong, saves following it from 0.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from outbound_transfer.lake.object_errors import InvalidObject, MissingPages, OtherFormat, StrayObjects
from outbound_transfer.lake.object_format import FORMATS, HEADER_VERSION, ObjectFormat, PageHeader
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.protocol.events import MAX_CURSOR
from outbound_transfer.warehouse.destination import check_account, check_address
from outbound_transfer.warehouse.errors import InvalidName, SchemaTooNew
from outbound_transfer.warehouse.timestamps import utc_now

log = logging.getLogger(__name__)

#: How long after a reset each run checks the pages from there on: a reader that it overtook may have left one behind.
RESET_MEMORY: Final = timedelta(days=1)

#: Seconds that a reader which was overtaken by a reset has to remove its page, before the page is a stray.
_STRAY_GRACE: Final = 2.0

#: Number of headers that are read at the same time, and from how many on.
_READERS: Final = 16
_MIN_PARALLEL: Final = 100

#: Maximum number of bytes of an account's name in a path: file systems limit a name to 255.
_MAX_ACCOUNT_BYTES: Final = 240

#: Number of objects that an error names.
_NAMED: Final = 3

_RESET: Final = re.compile(r"reset-(\d{20})-(\d{8}T\d{6}\.\d{6}Z)-[0-9a-f]{32}\.json", re.ASCII)

#: What decoding raises for what is not JSON of a type: also for text that is not UTF-8, and for deep nesting.
NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

#: Headers by ``cursor_from``; an error for an object that is not a page of this feed.
Headers: TypeAlias = dict[int, "PageHeader | InvalidObject | SchemaTooNew"]


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
    names = {name.rstrip("/") for name in (*store.list_names(), *store.list_names("_polls"))}
    return sorted(unquote(name.partition("=")[2]) for name in names if name.startswith("account="))


def compact_timestamp(timestamp: datetime) -> str:
    """Return a timestamp in UTC for a name: it sorts by time, and has no colon."""
    return timestamp.strftime("%Y%m%dT%H%M%S.%fZ")


class _Hint(msgspec.Struct, frozen=True):
    """A page that was in the chain."""

    cursor_from: int
    token: str


class _Binding(msgspec.Struct, frozen=True):
    """The account that a name stands for."""

    address: str


class PageChain:
    """The objects of one feed's pages.

    :param account: name of the feed's account.
    """

    def __init__(
        self, store: ObjectStore, account: str, page_format: ObjectFormat, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self.folder = account_folder(account)
        self.store, self.account, self.format, self.now = store, account, page_format, clock

    # -- objects

    def name(self, cursor: int) -> str:
        """Return the name of the page that was read with a cursor."""
        return f"{self.folder}/page-{cursor:020d}{self.format.suffix}"

    def read(self, cursor: int) -> PageHeader | None:
        """Return the header of the page that was read with a cursor; None if there is none.

        :raises InvalidObject: the object is not such a page.
        :raises SchemaTooNew: a newer version of this package wrote it.
        """
        name = self.name(cursor)
        try:
            found = self.format.read_header(lambda start, stop: self.store.read(name, start, stop))
            return None if found is None else self._decode(found, cursor)
        except (InvalidObject, IsADirectoryError) as error:
            raise InvalidObject(
                f"{self.store.path(name)} is not a page of this feed: {error}. Restore the object, or move it away "
                "and run `feed rebuild-cursor`: the feed is then read again from there"
            ) from error

    def _decode(self, text: bytes, cursor: int) -> PageHeader:
        try:
            version = msgspec.json.decode(text, type=dict).get("version")
            if isinstance(version, int) and version > HEADER_VERSION:
                raise SchemaTooNew(
                    f"{self.store.path(self.name(cursor))} was written by a newer version of this package"
                )
            header = msgspec.json.decode(text, type=PageHeader)
        except NOT_JSON as error:
            raise InvalidObject(f"its header is invalid: {error}") from error
        if (header.account, header.cursor_from) != (self.account, cursor):
            raise InvalidObject("its header is of another page or account: it was renamed or copied")
        if header.cursor_to <= cursor or (header.previous is None) != (cursor == 0) or (header.previous or 0) > cursor:
            raise InvalidObject("its header contradicts itself")
        return header

    def create(self, header: PageHeader, table: pa.Table) -> None:
        """Put a page.

        :raises FileExistsError: the page was put before.
        """
        self.store.create(self.name(header.cursor_from), self.format.encode(table, header))

    def list_cursors(self) -> tuple[list[int], list[str]]:
        """Return ``cursor_from`` of all objects that are named like pages, sorted, and the names of the others."""
        names = self.store.list_names(self.folder)
        cursors = _page_cursors(names, self.format)
        return sorted(cursors.values()), [name for name in names if name not in cursors]

    def read_many(self, cursors: Collection[int]) -> Headers:
        """Return the headers of pages; those that are gone meanwhile are left out."""
        if len(cursors) < _MIN_PARALLEL:
            found = [self._read_or_error(cursor) for cursor in cursors]
        else:
            with ThreadPoolExecutor(_READERS) as pool:
                found = list(pool.map(self._read_or_error, cursors))
        return {cursor: header for cursor, header in zip(cursors, found, strict=True) if header is not None}

    def _read_or_error(self, cursor: int) -> PageHeader | InvalidObject | SchemaTooNew | None:
        try:
            return self.read(cursor)
        except (InvalidObject, SchemaTooNew) as error:
            return error

    # -- the chain

    def follow(self, last: PageHeader | None) -> PageHeader | None:
        """Return the last page of the chain.

        :param last: a page of the chain; None to follow it from its first page.
        """
        while (following := self.read(last.cursor_to if last else 0)) is not None:
            last = following
        return last

    def find_last(self) -> PageHeader | None:
        """Return the last page of the chain, from the hint if that is good; None if there is no page.

        :raises MissingPages: pages of the chain are gone, and no hint leads to its last page.
        """
        hinted = self._read_hint()
        if hinted is not None:
            return self.follow(hinted)
        cursors = self.list_cursors()[0]
        reached, last = self.walk(cursors)
        last = self.follow(last)
        missed = [cursor for cursor in cursors if cursor not in reached]
        if missed and (missed := [cursor for cursor in self.find_strays() if cursor in missed]):
            self._check_missed(missed, reached, last)
        return last

    def _check_missed(self, missed: Collection[int], reached: Collection[int], last: PageHeader | None) -> None:
        """Check that pages which the chain does not lead to are only what a reset left behind.

        :raises MissingPages: they are not.
        """
        starts = {start for start, _, _ in self._resets()} & {*reached, last.cursor_to if last else 0}
        headers = self.read_many([cursor for cursor in missed if cursor < min(starts, default=MAX_CURSOR)])
        pages = {cursor: header for cursor, header in headers.items() if isinstance(header, PageHeader)}
        if pages:
            finish = max(header.cursor_to for header in pages.values())
            raise MissingPages(
                f"{self.describe(pages)} the page with the cursor {last.cursor_to if last else 0} is gone. Restore the "
                f"objects that are missing; or run `feed reset --to {finish}`: it puts pages without rows in their "
                "place, and the feed is read from there"
            )

    def is_reset_to_start(self) -> bool:
        """Return whether a reset is remembered that deleted all pages."""
        return any(start == 0 for start, _, _ in self._resets())

    def has_hint(self) -> bool:
        """Return whether there is a hint, of whatever page."""
        return self._decode_hint() is not None

    def walk(self, cursors: Collection[int]) -> tuple[set[int], PageHeader | None]:
        """Follow the chain from its first page, without the hint.

        :param cursors: those of the pages that exist.
        :return: ``cursor_from`` of its pages, and its last page.
        """
        return walk_headers(self.read_many(cursors))

    def find_strays(self, start: int = 0) -> list[int]:
        """Return ``cursor_from`` of the pages from ``start`` on that the chain does not lead to.

        :param start: where a page of the chain starts, or its finish.
        """
        cursors = self.list_cursors()[0]  # before the chain: it may grow meanwhile
        reached, position = set(), start
        while (header := self.read(position)) is not None:
            reached.add(position)
            position = header.cursor_to
        return [cursor for cursor in cursors if cursor >= start and cursor not in reached]

    def check_other_formats(self) -> None:
        """Check that the feed has no page in another format.

        :raises OtherFormat: it was.
        """
        names = self.store.list_names(self.folder)
        for name, other in FORMATS.items():
            if other is not self.format and _page_cursors(names, other):
                raise OtherFormat(
                    f"{self.store.path(self.folder)} has pages of the format '{name}': set that, or another path"
                )

    # -- the hint

    @property
    def _hint_name(self) -> str:
        return f"_feed/{self.folder}/hint.json"

    def _read_hint(self) -> PageHeader | None:
        """Return the page that the hint names, if it is still in the chain."""
        hint = self._decode_hint()
        if hint is None:
            return None
        try:
            header = self.read(hint.cursor_from)
            if header is None or header.token != hint.token:
                return None
            return header if self.has_predecessor(header) or self._is_oldest(header) else None
        except InvalidObject:
            return None

    def _decode_hint(self) -> _Hint | None:
        try:
            hint = msgspec.json.decode(self.store.read(self._hint_name) or b"", type=_Hint)
        except (*NOT_JSON, IsADirectoryError):
            return None
        return hint if 0 <= hint.cursor_from <= MAX_CURSOR else None

    def _is_oldest(self, header: PageHeader) -> bool:
        """Return whether the pages before a page have expired; a reset leaves none behind whose predecessor is gone."""
        is_first = min(self.list_cursors()[0], default=0) == header.cursor_from
        return is_first and not any(start <= header.cursor_from for start, _, _ in self._resets())

    def has_predecessor(self, header: PageHeader) -> bool:
        """Return whether the page that a page follows is there, and leads to it."""
        if header.previous is None:
            return True
        before = self.read(header.previous)
        return before is not None and before.cursor_to == header.cursor_from

    def write_hint(self, last: PageHeader | None) -> None:
        """Let the next run follow the chain from here on. A failure is logged: it only costs time."""
        try:
            if last is None:
                self.store.delete(self._hint_name)
            else:
                self.store.replace(self._hint_name, msgspec.json.encode(_Hint(last.cursor_from, last.token)))
        except OSError as error:
            log.warning("Could not write %s: %s. The next run takes longer", self.store.path(self._hint_name), error)

    # -- the account

    @property
    def address_name(self) -> str:
        """Name of the object with the site address that the account's name is bound to."""
        return f"_feed/{self.folder}/address.json"

    def bind_account(self, address: str) -> None:
        """Bind the account's name to a site address, unless it is bound.

        :raises OtherAccount: it is bound to another one.
        """
        if self.read_address() is None:
            with suppress(FileExistsError):
                self.store.create(self.address_name, msgspec.json.encode(_Binding(address)))
        remedy = f"delete {self.store.path(self.address_name)}"
        check_address(self.account, self.read_address(), address, remedy)

    def read_address(self) -> str | None:
        """Return the site address that the account's name is bound to; None if it is not bound.

        :raises InvalidObject: the object is damaged.
        """
        found = self.store.read(self.address_name)
        try:
            return None if found is None else msgspec.json.decode(found, type=_Binding).address
        except NOT_JSON as error:
            raise InvalidObject(
                f"{self.store.path(self.address_name)} is not as this package writes it ({error}): delete it, and the "
                "next run binds the account's name to the site address of its connection"
            ) from error

    # -- resets

    def remember_reset(self, start: int) -> None:
        """Record that pages from ``start`` on are deleted, before the first of them is.

        :param start: where a page of the chain starts.
        """
        name = f"reset-{start:020d}-{compact_timestamp(self.now())}-{uuid.uuid4().hex}.json"
        self.store.create(f"_feed/{self.folder}/{name}", b"{}")

    def check_after_resets(self, last: PageHeader | None) -> None:
        """After a reset, check that no reader that it overtook left a page behind.

        :param last: the last page of the chain.
        :raises StrayObjects: there is one.
        """
        resets = self._resets()
        if not resets:
            return
        strays = self._strays_of(resets, last)
        if strays:
            time.sleep(_STRAY_GRACE)
            strays &= self._strays_of(resets, self.find_last())
        if strays:
            raise StrayObjects(
                f"{self.describe(strays)} left behind by a reader that a reset overtook. Run `feed rebuild-cursor`: it "
                "deletes them, and the feed is read again from there"
            )
        oldest = compact_timestamp(self.now() - RESET_MEMORY)
        self._forget_resets(each for each in resets if each[1] < oldest)

    def _strays_of(self, resets: Iterable[tuple[int, str, str]], last: PageHeader | None) -> set[int]:
        starts = [start for start, _, _ in resets if self._is_in_chain(start, last)]
        return set(self.find_strays(min(starts))) if starts else set()

    def _is_in_chain(self, start: int, last: PageHeader | None) -> bool:
        """Return whether a page of the chain starts here, or the chain finishes: later resets may have cut it anew."""
        if start == (last.cursor_to if last else 0):
            return True
        header = self.read(start)
        return header is not None and self.has_predecessor(header)

    def forget_other_resets(self, starts: Collection[int]) -> None:
        """Forget the resets that name no start of a page, and not the chain's finish.

        :param starts: these.
        """
        self._forget_resets(each for each in self._resets() if each[0] not in starts)

    def _forget_resets(self, resets: Iterable[tuple[int, str, str]]) -> None:
        """Delete records, the greatest start first: what a killed process leaves is of the longest part."""
        for _, _, name in sorted(resets, reverse=True):
            self.store.delete(f"_feed/{self.folder}/{name}")

    def _resets(self) -> list[tuple[int, str, str]]:
        """Return the resets that are remembered: where, when, and the object's name."""
        names = self.store.list_names(f"_feed/{self.folder}")
        return [(int(match[1]), match[2], name) for name in names if (match := _RESET.fullmatch(name))]

    def describe(self, cursors: Iterable[int]) -> str:
        """Return a sentence's beginning that names pages."""
        paths = [self.store.path(self.name(cursor)) for cursor in sorted(cursors)]
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        return f"{', '.join(paths[:_NAMED])}{more}: the chain of pages does not lead there;"


def walk_headers(headers: Headers, start: int = 0) -> tuple[set[int], PageHeader | None]:
    """Follow the chain through headers that were read.

    :param start: ``cursor_from`` of the first page.
    :raises InvalidObject: a page of the chain is not one of this feed.
    """
    reached: set[int] = set()
    last: PageHeader | None = None
    while (found := headers.get(last.cursor_to if last else start)) is not None:
        if isinstance(found, Exception):
            raise found
        reached.add(found.cursor_from)
        last = found
    return reached, last


def _page_cursors(names: Iterable[str], page_format: ObjectFormat) -> dict[str, int]:
    """Return ``cursor_from`` of the names that are those of pages in a format."""
    pattern = re.compile(rf"page-(\d{{20}}){re.escape(page_format.suffix)}", re.ASCII)
    found = {name: int(match[1]) for name in names if (match := pattern.fullmatch(name))}
    return {name: cursor for name, cursor in found.items() if cursor <= MAX_CURSOR}


def detect_format(store: ObjectStore, account: str) -> ObjectFormat:
    """Return the format of a feed's pages, of which the first may be gone; Parquet if it has none."""
    names = store.list_names(account_folder(account))
    found = [each for each in FORMATS.values() if _page_cursors(names, each)]
    started = [each for each in found if 0 in _page_cursors(names, each).values()]
    return next(iter([*started, *found]), FORMATS["parquet"])
