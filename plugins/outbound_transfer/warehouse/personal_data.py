"""The rows with a person's address in a SQL database: found, erased; and what is old, deleted."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import Table

from outbound_transfer.client.outcomes import DELETED, TERMINAL_STATUSES
from outbound_transfer.store.event_content import erase_event, event_of
from outbound_transfer.store.personal_data import ERASED, AddressSearch, erased_line
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.tables import (
    BYTES,
    EVENTS,
    FEED_POLLS,
    JSON,
    RECIPIENTS,
    REJECTED_LINES,
    TABLES,
    TRANSFERS,
)
from outbound_transfer.warehouse.timestamps import format_timestamp

#: Columns with personal data by table. What triggerers share is no row of a person: an erasure removes all of it.
_PERSONAL: Final = {
    table: names for table in TABLES if (names := [each.name for each in table.columns if each.info.get("personal")])
}

#: Statuses of what nobody can pick up any more, as a list in SQL.
_FINISHED: Final = ", ".join(f"'{each}'" for each in (*TERMINAL_STATUSES, DELETED))

#: Polls that have moved the cursor stay, for `feed verify` and the check of a new cursor; and the last, for its answer.
_OLD_POLLS: Final = (
    "[account] = ? AND [polled_at] < ? AND [polled_at] < ? AND [action] = 'poll'"
    " AND ([cursor_to] IS NULL OR [cursor_to] = [cursor_from])"
)

#: The listing may have an old transfer again, so its recipients' rows stay.
_OLD_RECIPIENTS: Final = (
    "UPDATE {recipients} SET [email] = ?, [name] = ? WHERE [email] <> ? AND EXISTS (SELECT 1 FROM {transfers} WHERE"  # noqa: S608
    " {transfers}.[account] = {recipients}.[account] AND {transfers}.[transfer_id] = {recipients}.[transfer_id]"
    f" AND [sent_at] < ? AND [status] IN ({_FINISHED}))"
)


class PersonalData(ABC):
    """What one database has of a person.

    :ivar location: names it, in counts.
    """

    location: str

    @abstractmethod
    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        """Return the rows that have an address, by table."""

    @abstractmethod
    def erase(self, search: AddressSearch) -> dict[str, int]:
        """Erase an address from these rows; return their number by table. Files may keep the old values.

        Ids, cursors, times and digests stay, so what is read again is known, and stored as it is.
        """


class SqlPersonalData(PersonalData):
    """The rows about persons in the tables of a warehouse, of all accounts."""

    def __init__(self, warehouse: Warehouse, location: str) -> None:
        self._warehouse, self.location = warehouse, location

    def _existing(self, tables: Iterable[Table]) -> list[Table]:
        found = []
        for table in tables:
            with self._warehouse.read() as tx:  # a failed query may end a transaction
                found += [table] if self._warehouse.table_exists(tx, table) else []
        return found

    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for table in self._existing(_PERSONAL):
            condition, parameters = _candidates(table, search)
            with self._warehouse.read() as tx:
                rows = self._select(tx, table, condition, parameters)
                if matching := [row for row in rows if _erased(table, row, search)]:
                    found[table.name] = matching
        return found

    def _select(self, tx: Any, table: Table, condition: str, parameters: Sequence[Any]) -> Iterator[dict[str, Any]]:
        columns = ", ".join(
            f"CAST([{each.name}] AS TEXT)" if each.type is JSON else f"[{each.name}]" for each in table.columns
        )
        query = f"SELECT {columns} FROM {{{table.name}}} WHERE {condition}"  # noqa: S608
        for row in fetch_all(self._warehouse.run(tx, query, parameters)):
            values = (bytes(value) if isinstance(value, memoryview) else value for value in row)
            yield dict(zip(table.columns.keys(), values, strict=True))

    def erase(self, search: AddressSearch) -> dict[str, int]:
        counts: Counter[str] = Counter()
        found, tables = self.find(search), self._existing(_PERSONAL)
        for table in tables:
            for row in found.get(table.name, ()):
                key = {column.name: row[column.name] for column in table.primary_key}
                change = partial(self._erase, table, key, search)
                counts[table.name] += self._warehouse.retry_on_conflict(change)
        return {name: count for name, count in counts.items() if count}

    def _erase(self, table: Table, key: Mapping[str, Any], search: AddressSearch) -> bool:
        """Erase an address from a row as it is now: a task may have written to it since it was found."""
        condition, first = " AND ".join(f"[{name}] = ?" for name in key), _PERSONAL[table][0]
        update = f"UPDATE {{{table.name}}} SET"
        with self._warehouse.transaction() as tx:
            self._warehouse.run(tx, f"{update} [{first}] = [{first}] WHERE {condition}", [*key.values()])  # locks it
            row = next(self._select(tx, table, condition, [*key.values()]), None)
            erased = _erased(table, row, search) if row else {}
            if erased:
                columns = ", ".join(f"[{name}] = ?" for name in erased)
                self._warehouse.run(tx, f"{update} {columns} WHERE {condition}", [*erased.values(), *key.values()])
        return bool(erased)

    def delete_before(self, time: datetime, *, dry_run: bool) -> dict[str, int]:
        """Delete events, rejected lines, and polls without lines that were stored before a time; erase the recipients
        of finished transfers that were sent before it.

        Each feed's newest page stays, for the cursor.

        :param dry_run: only count.
        :return: number of rows by table.
        """
        existing, old = self._existing(TABLES), format_timestamp(time)
        with self._warehouse.trial() if dry_run else self._warehouse.transaction() as tx:
            counts: Counter[str] = Counter()
            for table, condition, *parameters in self._old(tx, existing, old):
                statement = f"DELETE FROM {{{table.name}}} WHERE {condition}"  # noqa: S608
                counts[table.name] += self._change(tx, statement, *parameters)
            if RECIPIENTS in existing and TRANSFERS in existing:
                counts[RECIPIENTS.name] = self._change(tx, _OLD_RECIPIENTS, ERASED, ERASED, ERASED, old)
        return {name: count for name, count in counts.items() if count}

    def _old(self, tx: Any, existing: Sequence[Table], old: str) -> Iterator[tuple[Any, ...]]:
        """Yield each table with the condition of its old rows, and parameters."""
        if FEED_POLLS in existing:
            query = "SELECT [account], max([polled_at]) FROM {feed_polls} WHERE [action] = 'poll' GROUP BY [account]"
            for account, newest in fetch_all(self._warehouse.run(tx, query)):
                at = format_timestamp(newest) if isinstance(newest, datetime) else newest
                yield FEED_POLLS, _OLD_POLLS, account, at, old
        if EVENTS in existing:
            query = "SELECT [account], max([cursor_from]) FROM {events} GROUP BY [account]"
            for account, newest in fetch_all(self._warehouse.run(tx, query)):
                for table in (EVENTS, REJECTED_LINES):
                    yield table, "[account] = ? AND [loaded_at] < ? AND [cursor_from] < ?", account, old, newest

    def _change(self, tx: Any, statement: str, *parameters: Any) -> int:
        self._warehouse.run(tx, statement, parameters)
        return self._warehouse.dialect.rowcount(tx)


def _candidates(table: Table, search: AddressSearch) -> tuple[str, list[str]]:
    """Return the condition of rows that may have an address: databases know neither its case nor escapes."""
    names = _PERSONAL[table]
    if any(table.columns[name].type is BYTES for name in names):
        return "1 = 1", []
    forms = ["%".join(re.split("[^a-hj-z0-9]+", form)) for form in search.forms]
    patterns = [*(f"%{form}%" for form in forms), "%\\%", "%!%%"]
    likes = [f"lower(CAST([{name}] AS TEXT)) LIKE ? ESCAPE '!'" for name in names for _ in patterns]
    return " OR ".join(likes), patterns * len(names)


def _erased(table: Table, row: Mapping[str, Any], search: AddressSearch) -> dict[str, Any]:
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
