"""The tables in a database, with the names that they have there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa

from outbound_transfer.store.engine import Database, HookLike
from outbound_transfer.store.naming import DEFAULT_PREFIX, check_prefix, check_schema
from outbound_transfer.store.tables import (
    ACCOUNTS,
    EVENTS,
    FEED_CURSOR,
    FEED_POLLS,
    RECIPIENTS,
    REJECTED_LINES,
    TABLES,
    TRANSFER_SYNC,
    TRANSFERS,
    with_names,
)

#: Bytes of a table's name; the database would shorten a longer one silently.
_MAX_NAME: Final = {"postgresql": 63, "mysql": 64, "sqlite": 1_000, "duckdb": 1_000}

#: Tables that are created together.
FEED: Final = (EVENTS, FEED_CURSOR, REJECTED_LINES, FEED_POLLS)
LISTING: Final = (TRANSFERS, RECIPIENTS, TRANSFER_SYNC)
GROUPS: Final = {"accounts": (ACCOUNTS,), "feed": FEED, "transfers": LISTING}


class Tables:
    """The tables of one prefix and schema in the database of a hook.

    :param schema: existing schema of the tables; default: the connection's own.
    :param timeout: seconds to wait for other sessions; default: those of the database.
    :raises UnsupportedDatabase: events and transfers are not stored there.
    :raises InvalidName: the database cannot use the names unchanged.
    """

    def __init__(
        self, hook: HookLike, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None, timeout: float | None = None
    ) -> None:
        self.database = Database(hook, "events or transfers", timeout=timeout)
        self.prefix, self.schema = prefix, schema or None
        check_prefix(prefix, _MAX_NAME[self.database.name])
        check_schema(schema, _MAX_NAME[self.database.name])
        self._named = {table.name: with_names(table, prefix, self.schema) for table in TABLES}
        if self.database.name == "duckdb":  # it scans columns faster than it keeps an index
            for named in self._named.values():
                named.indexes.clear()

    def named(self, table: sa.Table) -> sa.Table:
        """Return a table of :data:`.tables.TABLES` with its names here."""
        return self._named[table.name]

    def exist(self, tables: Iterable[sa.Table]) -> bool:
        """Return whether all of these tables are there."""
        with self.database.begin(reads_only=True) as tx:
            there = sa.inspect(tx)
            return all(there.has_table(self.named(each).name, self.schema) for each in tables)

    def create(self, tables: Iterable[sa.Table]) -> None:
        """Create the tables that do not exist. Several sessions may do so at the same time.

        :raises UnusableDatabase: their schema does not exist, the user may not create them, or another program has
            made one of these names.
        """
        self.database.create_tables([self.named(each) for each in tables])
