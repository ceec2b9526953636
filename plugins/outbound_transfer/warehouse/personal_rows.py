"""The rows about persons in a SQL database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Table

from outbound_transfer.protocol.outcomes import REHEARSED, TERMINAL_STATUSES
from outbound_transfer.protocol.personal_data import ERASED, only, redact_values
from outbound_transfer.warehouse.database import Warehouse, fetch_all, scalar
from outbound_transfer.warehouse.deliveries import DISCARDED, FAILED
from outbound_transfer.warehouse.destination import CLAIM
from outbound_transfer.warehouse.privacy import PersonalData, read_privacy, without_others
from outbound_transfer.warehouse.schema import PRIVACY, ensure_schema
from outbound_transfer.warehouse.tables import (
    BYTES,
    CALLS,
    DELIVERIES,
    DELIVERY_RECIPIENTS,
    ERASED_ADDRESSES,
    EVENTS,
    FEED_CURSOR,
    FEED_POLLS,
    JSON,
    PERSONAL_COLUMNS,
    POLL_READINGS,
    RECIPIENTS,
    REJECTED_LINES,
    TRANSFERS,
)
from outbound_transfer.warehouse.timestamps import format_timestamp
from outbound_transfer.warehouse.transfers import DELETED

#: Tables in which an address is erased. What triggerers share is no longer there once nobody waits, and a wait
#: concludes from it whether its transfer is the one that was sent.
_ERASABLE: Final = tuple(table for table in PERSONAL_COLUMNS if table is not POLL_READINGS)

#: Tables whose rows age, with the column of their age.
_AGES: Final = {
    EVENTS: "loaded_at",
    REJECTED_LINES: "loaded_at",
    FEED_POLLS: "polled_at",
    DELIVERY_RECIPIENTS: "updated_at",
    DELIVERIES: "updated_at",
    CALLS: "minute_at",
}

#: Which rows say where a feed stands: the newest of each account stays, and what is as new.
_NEWEST: Final = {EVENTS: "1 = 1", FEED_POLLS: f"[cursor_to] IS NOT NULL AND [action] <> '{CLAIM}'"}

#: Statuses of what nobody can pick up any more, as a list in SQL. Any other may be outstanding.
_FINISHED: Final = ", ".join(f"'{each}'" for each in (*TERMINAL_STATUSES, DELETED, DISCARDED, FAILED, REHEARSED))

#: The service may list a transfer again, so that its recipients' rows stay.
_OLD_RECIPIENTS: Final = (
    f"[email] <> '{ERASED}' AND EXISTS (SELECT 1 FROM {{transfers}} WHERE {{transfers}}.[account] = {{recipients}}.[account]"  # noqa: S608
    f" AND {{transfers}}.[transfer_id] = {{recipients}}.[transfer_id] AND [sent_at] < ? AND [status] IN ({_FINISHED}))"
)


class SqlPersonalData(PersonalData):
    """The rows about persons in the tables of a warehouse, a ledger, or what triggerers share."""

    def __init__(self, warehouse: Warehouse, location: str) -> None:
        self._warehouse, self.location = warehouse, location

    def _existing(self, tables: Iterable[Table]) -> list[Table]:
        found = []
        for table in tables:
            with self._warehouse.read() as tx:  # a failed query may end a transaction
                found += [table] if self._warehouse.table_exists(tx, table) else []
        return found

    def find(self, address: str) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for table in self._existing(_ERASABLE):
            with self._warehouse.read() as tx:
                rows = [row for row, _ in self._rows(tx, table, address)]
            if rows:
                found[table.name] = [without_others(row, address) for row in rows]
        return found

    def _rows(self, tx: Any, table: Table, address: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the rows that have an address, each with what changes in it when the address is erased."""
        personal = PERSONAL_COLUMNS[table]
        columns = ", ".join(
            f"CAST([{each.name}] AS TEXT)" if each.type is JSON else f"[{each.name}]" for each in table.columns
        )
        query, parameters = f"SELECT {columns} FROM {{{table.name}}}", list[str]()  # noqa: S608
        if not any(table.columns[name].type is BYTES for name in personal):
            # Only what may have the address. Neither its case, nor its form in DNS, nor escapes are known to databases.
            local, _, domain = address.rpartition("@")
            parts = (local, "" if "xn--" in domain else domain)
            pattern = "%".join(re.sub("[^a-hj-z0-9]+", "%", part) for part in ("", *parts, ""))
            likes = [f"lower(CAST([{name}] AS TEXT)) LIKE ? ESCAPE '!'" for name in personal for _ in range(2)]
            query, parameters = f"{query} WHERE {' OR '.join(likes)}", [pattern, "%\\%"] * len(personal)
        rows = fetch_all(self._warehouse.run(tx, query, parameters))
        named = (dict(zip(table.columns.keys(), _plain(row), strict=True)) for row in rows)
        changes = ((row, redact_values({name: row[name] for name in personal}, only(address))) for row in named)
        return [(row, change) for row, change in changes if change]

    def erase(self, address: str) -> dict[str, int]:
        now, digest = self._warehouse.now(), read_privacy().digest(address)
        ensure_schema(self._warehouse, PRIVACY, now)
        with self._warehouse.transaction() as tx:
            self._warehouse.insert(tx, ERASED_ADDRESSES, [(digest, format_timestamp(now))])
        tables = self._existing((FEED_CURSOR, *_ERASABLE))
        counts = self._warehouse.retry_on_conflict(lambda: self._erase(tables, address))
        self._warehouse.compact([table for table in tables if table in PERSONAL_COLUMNS])
        return counts

    def _erase(self, tables: list[Table], address: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        with self._warehouse.transaction() as tx:
            if FEED_CURSOR in tables:
                # Waits for a page that is loaded right now, and may not have seen the list.
                self._warehouse.run(tx, "UPDATE {feed_cursor} SET [updated_at] = [updated_at]")
            for table in tables:
                for row, change in self._rows(tx, table, address) if table in PERSONAL_COLUMNS else ():
                    key = table.primary_key.columns.keys()
                    self._warehouse.run(
                        tx,
                        f"UPDATE {{{table.name}}} SET {', '.join(f'[{name}] = ?' for name in change)}"  # noqa: S608
                        f" WHERE {' AND '.join(f'[{name}] = ?' for name in key)}",
                        (*change.values(), *(row[name] for name in key)),
                    )
                    counts[table.name] = counts.get(table.name, 0) + 1
        return counts

    def delete_before(self, time: datetime, *, is_rehearsal: bool) -> dict[str, int]:
        counts, text = {}, format_timestamp(time)
        existing = self._existing((RECIPIENTS, TRANSFERS, *_AGES))
        with self._warehouse.transaction() as tx:
            for table, age in _AGES.items():
                if table in existing:
                    limits = self._limits(tx, table, age, text)
                    counts[table.name] = sum(
                        self._change(tx, f"DELETE FROM {{{table.name}}}", condition, values, is_rehearsal=is_rehearsal)  # noqa: S608
                        for condition, *values in limits
                    )
            if RECIPIENTS in existing and TRANSFERS in existing:
                change = f"UPDATE {{recipients}} SET [email] = '{ERASED}', [name] = '{ERASED}'"  # noqa: S608
                counts[RECIPIENTS.name] = self._change(tx, change, _OLD_RECIPIENTS, (text,), is_rehearsal=is_rehearsal)
        return {name: count for name, count in counts.items() if count}

    def _limits(self, tx: Any, table: Table, age: str, time: str) -> list[tuple[str, ...]]:
        """Return the conditions of rows that are too old, each with its parameters."""
        if table is DELIVERIES:
            return [(f"[{age}] < ? AND [status] IN ({_FINISHED})", time)]
        if table is DELIVERY_RECIPIENTS:
            kept = (
                "SELECT 1 FROM {deliveries} WHERE {deliveries}.[account] = {delivery_recipients}.[account] AND "
                "{deliveries}.[transfer_id] = {delivery_recipients}.[transfer_id]"
            )
            return [(f"[{age}] < ? AND NOT EXISTS ({kept} AND [status] NOT IN ({_FINISHED}))", time)]
        if table not in _NEWEST:
            return [(f"[{age}] < ?", time)]
        query = f"SELECT [account], max([{age}]) FROM {{{table.name}}} WHERE {_NEWEST[table]} GROUP BY [account]"  # noqa: S608
        newest = fetch_all(self._warehouse.run(tx, query))
        times = [(each, format_timestamp(at) if isinstance(at, datetime) else at) for each, at in newest]
        return [(f"[account] = ? AND [{age}] < ?", account, min(time, at)) for account, at in times]

    def _change(self, tx: Any, change: str, condition: str, values: Sequence[Any], *, is_rehearsal: bool) -> int:
        rows = re.sub(r".*?(\{\w+\}).*", rf"SELECT count(*) FROM \1 WHERE {condition}", change)  # noqa: S608
        count = int(scalar(tx, self._warehouse.render(rows), values))
        if count and not is_rehearsal:
            self._warehouse.run(tx, f"{change} WHERE {condition}", values)
        return count


def _plain(row: Sequence[Any]) -> list[Any]:
    return [bytes(value) if isinstance(value, memoryview) else value for value in row]
