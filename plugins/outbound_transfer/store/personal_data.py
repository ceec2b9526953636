"""Finds a person's address in stored rows, exports and erases it; deletes what is old."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache, partial
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import sqlalchemy as sa

from outbound_transfer.client.new_transfer import normalize_address
from outbound_transfer.store.engine import Database
from outbound_transfer.store.errors import ADDRESS, AT
from outbound_transfer.store.events import erase_event, erased_content, event_of
from outbound_transfer.store.rows import DELETED, ERASED, TERMINAL_STATUSES
from outbound_transfer.store.tables import (
    EVENTS,
    FEED,
    FEED_POLLS,
    RECIPIENTS,
    REJECTED_LINES,
    TABLES,
    TRANSFERS,
    Tables,
)

Row: TypeAlias = Mapping[Any, Any]

#: A character as JSON may write it, and JSON in JSON.
_ESCAPED: Final = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|[bfnrt])")

#: Lines of a feed that one transaction of a retention deletes at most.
_BATCH: Final = 10_000


class AddressSearch:
    """Finds an address in text, JSON and URLs, in any case of letters and however it is escaped there.

    ``joann@example.com`` and ``ann@example.com.au`` are not ``ann@example.com``.
    """

    def __init__(self, address: str) -> None:
        known = (address, normalize_address(address), _to_unicode_domain(address))
        # Not casefold(): "strauß@" is not "strauss@".
        self._forms = {unicodedata.normalize(form, each).lower() for each in known for form in ("NFC", "NFD")}
        letter, any_form = f"[\\w{_marks()}]", "|".join(map(re.escape, self._forms))
        self._whole = re.compile(rf"(?<!{letter})(?<!{letter}[-.+&'])(?:{any_form})(?!-|\.?{letter})")

    def matches(self, value: Any) -> bool:
        """Return whether a value has the address: text, bytes, or what JSON can be decoded to."""
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for _ in range(3):  # JSON in a URL in JSON
            if self._is_in(text):
                return True
            if (decoded := _decode(text)) == text:
                return False
            text = decoded
        return self._is_in(text)

    def _is_in(self, text: str) -> bool:
        lower = text.lower()
        return any(form in lower for form in self._forms) and self._whole.search(lower) is not None

    def hide_others(self, text: str) -> str:
        """Return a string without other people's addresses."""

        def shown(found: re.Match[str]) -> str:
            return found[0] if self.matches(found[0]) and len(re.findall(AT, found[0])) == 1 else "***"

        return ADDRESS.sub(shown, text)


@cache
def _marks() -> str:
    """Return the characters that are parts of letters, such as vowel signs, but not word characters for ``re``."""
    return "".join(mark for mark in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(mark)[0] == "M")


def _to_unicode_domain(address: str) -> str:
    """Return the address with its domain in the letters that people write; unchanged if DNS has no such domain."""
    local, at, domain = address.rpartition("@")
    try:
        return f"{local}{at}{domain.encode().decode('idna')}"
    except UnicodeError:
        return address


def _decode(text: str) -> str:
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", unquote(text))
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Erased: TypeAlias = Callable[[str, Row, AddressSearch], dict[str, Any] | None]


class PersonalData:
    """The rows about persons in some tables of a database.

    :param location: names the database, in counts.
    :param tables: by their names in counts; the columns that may have a person are marked ``personal``.
    :param erased: returns the values to store in a row of a table, by its name; None if the row must stay as it is.
    :ivar unfinished: transfers whose rows the last erasure has left as they are.
    """

    def __init__(self, location: str, database: Database, tables: Mapping[str, sa.Table], erased: Erased) -> None:
        self.location, self._database, self._tables, self._erased = location, database, tables, erased
        self.unfinished: list[str] = []

    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        """Return the rows that have an address, by table."""
        found = {name: list(self._matching(table, search)) for name, table in self._tables.items()}
        return {name: rows for name, rows in found.items() if rows}

    def count(self, search: AddressSearch) -> dict[str, int]:
        """Return the number of these rows by table."""
        return {name: len(rows) for name, rows in self.find(search).items()}

    def _matching(self, table: sa.Table, search: AddressSearch) -> Iterator[dict[str, Any]]:
        """Yield the rows that have an address. All are read, in chunks: databases know neither its case nor escapes."""
        if not self._database.is_there() or not any(column.info for column in table.columns):
            return
        with self._database.begin(reads_only=True) as tx:
            if sa.inspect(tx).has_table(table.name, table.schema):
                for row in tx.execute(sa.select(table).execution_options(yield_per=100)).mappings():
                    if matching(table, row, search):
                        yield dict(row)

    def erase(self, search: AddressSearch) -> dict[str, int]:
        """Erase an address from these rows; return their number by table. Files may keep the old values.

        Ids, cursors, times and digests stay, so what is read again is known, and stored as it is.
        """
        counts, self.unfinished = Counter[str](), []
        for name, table in self._tables.items():
            for row in list(self._matching(table, search)):
                erased = self._database.retry(partial(self._erase, name, table, row, search))
                counts[name] += bool(erased)
                self.unfinished += [row["transfer_id"]] if erased is None else []
        return dict(+counts)

    def _erase(self, name: str, table: sa.Table, found: Row, search: AddressSearch) -> dict[str, Any] | None:
        """Erase an address from a row as it is now: a task may have written to it since it was found."""
        where = [column == found[column.name] for column in table.primary_key]
        with self._database.begin() as tx:
            row = tx.execute(sa.select(table).where(*where).with_for_update()).mappings().first()
            if erased := self._erased(name, row, search) if row else {}:
                tx.execute(sa.update(table).where(*where).values(erased))
        return erased


def matching(table: sa.Table, row: Row, search: AddressSearch) -> list[str]:
    """Return the columns of a row that have an address."""
    return [each.name for each in table.columns if each.info.get("personal") and search.matches(row[each.name])]


def personal_data_of(tables: Tables, location: str) -> PersonalData:
    """Return the rows about persons in the tables of events and transfers, of all accounts."""
    named = {table.name: tables.named(table) for table in TABLES}

    def erased(name: str, row: Row, search: AddressSearch) -> dict[str, Any]:
        found = matching(named[name], row, search)
        if not found:
            return {}
        if name == EVENTS.name:
            event = erase_event(event_of(row))
            return {column: getattr(event, column) for column in ("data", "extra_fields", "raw")}
        if name == REJECTED_LINES.name:
            return {"raw": erased_content(row["line_digest"]).encode(), "reason": ERASED}
        return dict.fromkeys(("email", "name") if name == RECIPIENTS.name else found, ERASED)

    return PersonalData(location, tables.database, named, erased)


def delete_before(tables: Tables, time: datetime, *, dry_run: bool) -> dict[str, int]:
    """Delete events, rejected lines, and polls without lines that were stored before a time; erase the recipients of
    finished transfers that were sent before it. Each feed's newest page stays, for the cursor.

    :param dry_run: only count.
    :return: number of rows by table.
    """
    counts = Counter[str]()
    for table, is_old in _old_rows(tables, time):
        named = tables.named(table)
        change = sa.update(named).values(email=ERASED, name=ERASED) if table is RECIPIENTS else sa.delete(named)
        with tables.database.begin() as tx:
            counts[table.name] += tx.scalar(sa.select(sa.func.count()).select_from(named).where(is_old)) or 0
            if not dry_run:
                tx.execute(change.where(is_old))
    return dict(+counts)


def _old_rows(tables: Tables, time: datetime) -> Iterator[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Yield conditions of rows to delete, and of recipients to erase: the listing may have an old transfer again."""
    if tables.exist(FEED):
        polls = tables.named(FEED_POLLS).c
        for account, last in _newest(tables, polls.polled_at, polls.action == "poll").items():
            # Polls that have moved the cursor stay, for `feed verify` and the check of a new cursor.
            is_empty = polls.cursor_to.is_(None) | (polls.cursor_to == polls.cursor_from)
            is_old = (polls.polled_at < time) & (polls.polled_at < last)
            yield FEED_POLLS, (polls.account == account) & (polls.action == "poll") & is_empty & is_old
        pages = [_newest(tables, tables.named(table).c.cursor_from) for table in (EVENTS, REJECTED_LINES)]
        for account in {*pages[0], *pages[1]}:
            newest = max(each.get(account, 0) for each in pages)
            for table in (EVENTS, REJECTED_LINES):
                lines, end = tables.named(table).c, -1
                is_old = (lines.account == account) & (lines.loaded_at < time) & (lines.cursor_from < newest)
                first = sa.select(sa.func.min(lines.cursor_from)).where(is_old)
                # In parts, so that no transaction holds up the ingestion for long.
                while (start := _scalar(tables, first.where(lines.cursor_from > end))) is not None:
                    end = start + _BATCH
                    yield table, is_old & lines.cursor_from.between(start, end)
    if tables.exist([RECIPIENTS, TRANSFERS]):
        recipients, transfers = tables.named(RECIPIENTS).c, tables.named(TRANSFERS).c
        is_its = (transfers.account == recipients.account) & (transfers.transfer_id == recipients.transfer_id)
        is_old = (transfers.sent_at < time) & transfers.status.in_([*TERMINAL_STATUSES, DELETED])
        yield RECIPIENTS, (recipients.email != ERASED) & sa.exists().where(is_its, is_old)


def _newest(tables: Tables, column: sa.Column[Any], *where: sa.ColumnElement[bool]) -> dict[str, Any]:
    account = column.table.c.account
    with tables.database.begin(reads_only=True) as tx:
        return dict(tx.execute(sa.select(account, sa.func.max(column)).where(*where).group_by(account)).tuples().all())


def _scalar(tables: Tables, query: sa.Select[tuple[int]]) -> int | None:
    with tables.database.begin(reads_only=True) as tx:
        return tx.scalar(query)
