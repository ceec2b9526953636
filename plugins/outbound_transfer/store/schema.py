"""The tables in a database: their names there, and the version of each group of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import quoted_name

from outbound_transfer.store.engine import Database, HookLike
from outbound_transfer.store.tables import (
    ACCOUNTS,
    EVENTS,
    FEED_CURSOR,
    FEED_POLLS,
    RECIPIENTS,
    REJECTED_LINES,
    SCHEMA_VERSION,
    TABLES,
    TRANSFER_SYNC,
    TRANSFERS,
    with_names,
)
from outbound_transfer.warehouse.errors import SchemaTooNew
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX, check_prefix, check_schema
from outbound_transfer.warehouse.timestamps import utc_now

#: Bytes of a table's name; the database would shorten a longer one silently.
_MAX_NAME: Final = {"postgresql": 63, "mysql": 64, "sqlite": 1_000, "duckdb": 1_000}


@dataclass(frozen=True)
class TableGroup:
    """Tables that are created together."""

    name: str
    version: int
    tables: tuple[sa.Table, ...]


ACCOUNTS_GROUP: Final = TableGroup("accounts", 1, (ACCOUNTS,))
FEED: Final = TableGroup("feed", 1, (EVENTS, FEED_CURSOR, REJECTED_LINES, FEED_POLLS))
LISTING: Final = TableGroup("transfers", 1, (TRANSFERS, RECIPIENTS, TRANSFER_SYNC))

GROUPS: Final = (ACCOUNTS_GROUP, FEED, LISTING)


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

    def named(self, table: sa.Table) -> sa.Table:
        """Return a table of :data:`.tables.TABLES` with its names here."""
        return self._named[table.name]

    def exist(self, tables: Iterable[sa.Table]) -> bool:
        """Return whether all of these tables are there."""
        with self.database.begin() as tx:
            there = sa.inspect(tx)
            return all(there.has_table(self.named(each).name, self.schema) for each in tables)

    def create(self, group: TableGroup) -> None:
        """Create the tables of a group that do not exist. Several sessions may do so at the same time.

        :raises SchemaTooNew: they were created by a newer version of this package.
        :raises UnusableDatabase: their schema does not exist, or the user may not create them.
        """
        if self.version(group) == group.version:
            return
        metadata = sa.MetaData(schema=quoted_name(self.schema, quote=True) if self.schema else None)
        for table in (SCHEMA_VERSION, *group.tables):
            named = with_names(table, self.prefix, metadata=metadata)
            if self.database.name == "duckdb":  # it scans columns faster than it keeps an index
                named.indexes.clear()
        self.database.create_tables(metadata)
        self.database.retry(lambda: self._insert_version(group))

    def _insert_version(self, group: TableGroup) -> None:
        versions = self.named(SCHEMA_VERSION)
        row = {"component": group.name, "version": group.version, "updated_at": utc_now()}
        with self.database.begin() as tx:
            if tx.scalar(sa.select(versions.c.version).where(versions.c.component == group.name)) is None:
                tx.execute(sa.insert(versions), row)

    def version(self, group: TableGroup) -> int | None:
        """Return the version of the tables of a group; None if there are none yet.

        :raises SchemaTooNew: they were created by a newer version of this package.
        """
        if not self.exist([SCHEMA_VERSION]):
            return None
        versions = self.named(SCHEMA_VERSION)
        with self.database.begin() as tx:
            found = tx.scalar(sa.select(versions.c.version).where(versions.c.component == group.name))
        if found is not None and found > group.version:
            raise SchemaTooNew(
                f"the tables have version {found}, and this provider knows {group.version}: install the provider that "
                "made them, or a later one"
            )
        return found
