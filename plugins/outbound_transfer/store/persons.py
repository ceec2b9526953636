"""The rows with a person's address in a SQL database: found, erased; and what is old, deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from outbound_transfer.store.engine import Database
from outbound_transfer.store.event_content import erase_event, event_of
from outbound_transfer.store.personal_data import ERASED, AddressSearch, erased_content
from outbound_transfer.store.rows import DELETED, TERMINAL_STATUSES
from outbound_transfer.store.schema import FEED, Tables
from outbound_transfer.store.tables import EVENTS, FEED_POLLS, RECIPIENTS, REJECTED_LINES, TABLES, TRANSFERS

Row: TypeAlias = Mapping[Any, Any]
Erased: TypeAlias = Callable[[str, Row, AddressSearch], dict[str, Any] | None]

#: Lines of a feed that one transaction of a retention deletes at most.
_BATCH: Final = 10_000


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
    """Return the greatest value of a column by account."""
    account = column.table.c.account
    with tables.database.begin(reads_only=True) as tx:
        return dict(tx.execute(sa.select(account, sa.func.max(column)).where(*where).group_by(account)).tuples().all())


def _scalar(tables: Tables, query: sa.Select[tuple[int]]) -> int | None:
    with tables.database.begin(reads_only=True) as tx:
        return tx.scalar(query)
