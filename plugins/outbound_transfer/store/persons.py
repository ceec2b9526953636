"""The rows with a person's address in a SQL database: found, erased; and what is old, deleted."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from outbound_transfer.store.event_content import erase_event, event_of
from outbound_transfer.store.personal_data import ERASED, AddressSearch, erased_line
from outbound_transfer.store.schema import Tables
from outbound_transfer.store.statuses import DELETED, TERMINAL_STATUSES
from outbound_transfer.store.tables import EVENTS, FEED_POLLS, RECIPIENTS, REJECTED_LINES, TABLES, TRANSFERS
from outbound_transfer.store.types import BYTES

#: Columns with personal data by table. What triggerers share is no row of a person.
_PERSONAL: Final = {
    table: names for table in TABLES if (names := [each.name for each in table.columns if each.info.get("personal")])
}

#: Statuses of transfers that can no longer be picked up.
_FINISHED: Final = (*TERMINAL_STATUSES, DELETED)

#: Lines of a feed that one transaction of a retention deletes at most.
_BATCH: Final = 10_000

#: Rows that are read at once.
_CHUNK: Final = 100


class PersonalData(ABC):
    """What one database has of a person.

    :ivar location: names it, in counts.
    :ivar unfinished: transfers whose rows the last erasure has left as they are.
    """

    location: str
    unfinished: Sequence[str] = ()

    @abstractmethod
    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        """Return the rows that have an address, by table."""

    def count(self, search: AddressSearch) -> dict[str, int]:
        """Return the number of these rows by table."""
        return {table: len(rows) for table, rows in self.find(search).items()}

    @abstractmethod
    def erase(self, search: AddressSearch) -> dict[str, int]:
        """Erase an address from these rows; return their number by table. Files may keep the old values.

        Ids, cursors, times and digests stay, so what is read again is known, and stored as it is.
        """


class SqlPersonalData(PersonalData):
    """The rows about persons in the tables of a database, of all accounts."""

    def __init__(self, tables: Tables, location: str) -> None:
        self._tables, self._database, self.location = tables, tables.database, location

    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        found = {table.name: list(self._matching(table, search)) for table in _PERSONAL if self._tables.exist([table])}
        return {name: rows for name, rows in found.items() if rows}

    def _matching(self, table: sa.Table, search: AddressSearch) -> Iterator[dict[str, Any]]:
        """Yield the rows that have an address. The others are read in chunks, and not kept."""
        query = sa.select(self._tables.named(table)).where(self._candidates(table, search))
        with self._database.begin() as tx:
            for row in tx.execute(query.execution_options(yield_per=_CHUNK)).mappings():
                if _erased(table, row, search):
                    yield dict(row)

    def _candidates(self, table: sa.Table, search: AddressSearch) -> sa.ColumnElement[bool]:
        """Return the condition of rows that may have an address: databases know neither its case nor escapes."""
        columns = [self._tables.named(table).c[name] for name in _PERSONAL[table]]
        if any(column.type is BYTES for column in columns):
            return sa.true()
        forms = ["%".join(re.split("[^a-hj-z0-9]+", form)) for form in search.forms]
        patterns = [*(f"%{form}%" for form in forms), "%\\%", "%!%%"]
        texts = [sa.func.lower(sa.cast(column, sa.Text())) for column in columns]
        return sa.or_(*(text.like(pattern, escape="!") for text in texts for pattern in patterns))

    def erase(self, search: AddressSearch) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for table in _PERSONAL:
            if self._tables.exist([table]):
                keys = [[row[column.name] for column in table.primary_key] for row in self._matching(table, search)]
                for key in keys:
                    counts[table.name] += self._database.retry(partial(self._erase, table, key, search))
        return {name: count for name, count in counts.items() if count}

    def _erase(self, table: sa.Table, key: list[Any], search: AddressSearch) -> bool:
        """Erase an address from a row as it is now: a task may have written to it since it was found."""
        named = self._tables.named(table)
        where = [column == value for column, value in zip(named.primary_key, key, strict=True)]
        with self._database.begin() as tx:
            row = tx.execute(sa.select(named).where(*where).with_for_update()).mappings().first()
            erased = _erased(table, row, search) if row else {}
            if erased:
                tx.execute(sa.update(named).where(*where).values(erased))
        return bool(erased)

    def delete_before(self, time: datetime, *, dry_run: bool) -> dict[str, int]:
        """Delete events, rejected lines, and polls without lines that were stored before a time; erase the recipients
        of finished transfers that were sent before it.

        Each feed's newest page stays, for the cursor.

        :param dry_run: only count.
        :return: number of rows by table.
        """
        counts: Counter[str] = Counter()
        if self._tables.exist([EVENTS, REJECTED_LINES, FEED_POLLS]):
            polls = self._tables.named(FEED_POLLS)
            for condition in self._old_polls(time):
                counts[FEED_POLLS.name] += self._change(polls, condition, None if dry_run else sa.delete(polls))
            for account, newest in self._newest_pages().items():
                for table in (EVENTS, REJECTED_LINES):
                    counts[table.name] += self._delete_lines(table, account, newest, time, dry_run=dry_run)
        if self._tables.exist([RECIPIENTS, TRANSFERS]):
            recipients = self._tables.named(RECIPIENTS)
            erase = None if dry_run else sa.update(recipients).values(email=ERASED, name=ERASED)
            counts[RECIPIENTS.name] = self._change(recipients, self._old_recipients(time), erase)
        return {name: count for name, count in counts.items() if count}

    def _change(
        self, table: sa.Table, condition: sa.ColumnElement[bool], statement: sa.Update | sa.Delete | None
    ) -> int:
        """Run a statement on the rows of a condition; return their number. Only count them if it is None."""
        with self._database.begin() as tx:
            count = int(tx.scalar(sa.select(sa.func.count()).select_from(table).where(condition)) or 0)
            if count and statement is not None:
                tx.execute(statement.where(condition))
        return count

    def _old_polls(self, time: datetime) -> Iterator[sa.ColumnElement[bool]]:
        """Yield a condition for each account. Polls that have moved the cursor stay, for `feed verify` and the check
        of a new cursor; and the last, for its answer.
        """
        polls = self._tables.named(FEED_POLLS).c
        newest = sa.select(polls.account, sa.func.max(polls.polled_at)).where(polls.action == "poll")
        with self._database.begin() as tx:
            found = tx.execute(newest.group_by(polls.account)).all()
        for account, polled_at in found:
            is_empty = polls.cursor_to.is_(None) | (polls.cursor_to == polls.cursor_from)
            is_old = (polls.polled_at < time) & (polls.polled_at < polled_at)
            yield (polls.account == account) & (polls.action == "poll") & is_empty & is_old

    def _newest_pages(self) -> dict[str, int]:
        """Return the cursor of the newest page that has lines, by account."""
        newest: dict[str, int] = {}
        for table in (EVENTS, REJECTED_LINES):
            columns = self._tables.named(table).c
            query = sa.select(columns.account, sa.func.max(columns.cursor_from)).group_by(columns.account)
            with self._database.begin() as tx:
                for account, cursor in tx.execute(query):
                    newest[account] = max(cursor, newest.get(account, 0))
        return newest

    def _delete_lines(self, table: sa.Table, account: str, newest: int, time: datetime, *, dry_run: bool) -> int:
        """Delete the old lines of a feed, in transactions that do not hold up the ingestion for long."""
        named = self._tables.named(table)
        columns, count = named.c, 0
        is_old = (columns.account == account) & (columns.loaded_at < time) & (columns.cursor_from < newest)
        if dry_run:
            return self._change(named, is_old, None)
        while True:
            with self._database.begin() as tx:
                first = tx.scalar(sa.select(sa.func.min(columns.cursor_from)).where(is_old))
            if first is None:
                return count
            count += self._change(named, is_old & (columns.cursor_from <= first + _BATCH), sa.delete(named))

    def _old_recipients(self, time: datetime) -> sa.ColumnElement[bool]:
        """Return the condition of recipients to erase. Their rows stay: the listing may have an old transfer again."""
        recipients, transfers = self._tables.named(RECIPIENTS).c, self._tables.named(TRANSFERS).c
        is_its = (transfers.account == recipients.account) & (transfers.transfer_id == recipients.transfer_id)
        is_old = (transfers.sent_at < time) & transfers.status.in_(_FINISHED)
        return (recipients.email != ERASED) & sa.exists().where(is_its, is_old)


def _erased(table: sa.Table, row: Mapping[Any, Any], search: AddressSearch) -> dict[str, Any]:
    """Return the values of a row that change when an address is erased; none if the row does not have it."""
    found = [name for name in _PERSONAL[table] if search.matches(row[name])]
    if not found:
        return {}
    if table is EVENTS:
        event = erase_event(event_of(row))
        return {name: getattr(event, name) for name in ("data", "extra_fields", "raw")}
    if table is REJECTED_LINES:
        return {"raw": erased_line(row["raw"]), "reason": ERASED}
    if table is RECIPIENTS:
        return {"email": ERASED, "name": ERASED}
    return dict.fromkeys(found, ERASED)
