"""One class per kind of database: PostgreSQL, MySQL, SQLite and DuckDB."""

from __future__ import annotations

from typing import Final

from outbound_transfer.store.engine import HookLike, check_database
from outbound_transfer.warehouse.dialects.base import Row, WarehouseDialect
from outbound_transfer.warehouse.dialects.duckdb import DuckDbDialect
from outbound_transfer.warehouse.dialects.mysql import MySqlDialect
from outbound_transfer.warehouse.dialects.postgresql import PostgresDialect
from outbound_transfer.warehouse.dialects.sqlite import SqliteDialect

__all__ = ["DIALECTS", "Row", "WarehouseDialect", "dialect_of"]

DIALECTS: Final[dict[str, type[WarehouseDialect]]] = {
    dialect.name: dialect for dialect in (DuckDbDialect, MySqlDialect, PostgresDialect, SqliteDialect)
}


def dialect_of(hook: HookLike) -> WarehouseDialect:
    """Return the dialect of a hook's database.

    :raises UnsupportedDatabase: events and transfers are not stored there.
    """
    return DIALECTS[check_database(hook, "events or transfers")]()
