"""The tables of events and transfers in a database, with the names that they have there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa

from outbound_transfer.store.config import DEFAULT_PREFIX, check_prefix, check_schema, find_connection, sql_hook
from outbound_transfer.store.destination import check_address
from outbound_transfer.store.engine import Database, HookLike
from outbound_transfer.store.insert import insert_new
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
from outbound_transfer.store.values import utc_now

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
        """Create the tables that do not exist; see :meth:`.Database.create_tables`."""
        self.database.create_tables([self.named(each) for each in tables])

    def bind_account(self, account: str, address: str) -> None:
        """Bind an account's name to a site address, unless it is bound.

        :raises OtherAccount: it is bound to another one.
        """
        self.create([ACCOUNTS])
        accounts = self.named(ACCOUNTS)

        def bind() -> str | None:
            with self.database.begin() as tx:
                insert_new(tx, accounts, [{"account": account, "address": address, "bound_at": utc_now()}])
                return tx.scalar(sa.select(accounts.c.address).where(accounts.c.account == account))

        remedy = f"delete its row in the table {accounts.name}"
        check_address(account, self.database.retry(bind), address, remedy)

    def read_address(self, account: str) -> str | None:
        """Return the site address that an account's name is bound to; None if it is not bound."""
        accounts = self.named(ACCOUNTS)
        with self.database.begin(reads_only=True) as tx:
            there = sa.inspect(tx).has_table(accounts.name, self.schema)
            query = sa.select(accounts.c.address).where(accounts.c.account == account)
            return tx.scalar(query) if there else None


def open_tables(sql_conn_id: str, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> Tables:
    """Return the tables in the database of a connection, without connecting.

    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    :raises UnsupportedDatabase: events and transfers are not stored in its database.
    """
    return Tables(sql_hook(find_connection(sql_conn_id)), prefix=prefix, schema=schema)
