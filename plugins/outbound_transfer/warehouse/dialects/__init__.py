"""One class per kind of database: PostgreSQL, MySQL, SQLite, DuckDB, and portable SQL for any other."""

from __future__ import annotations

import re
from typing import Final

from outbound_transfer.warehouse.dialects.base import DbApiHookLike, Row, WarehouseDialect
from outbound_transfer.warehouse.dialects.duckdb import DuckDbDialect
from outbound_transfer.warehouse.dialects.generic import GenericDialect
from outbound_transfer.warehouse.dialects.mysql import MySqlDialect
from outbound_transfer.warehouse.dialects.postgresql import PostgresDialect
from outbound_transfer.warehouse.dialects.refused import check_names
from outbound_transfer.warehouse.dialects.sqlite import SqliteDialect

__all__ = ["DIALECTS", "DbApiHookLike", "Row", "WarehouseDialect", "dialect_of"]

DIALECTS: Final[dict[str, type[WarehouseDialect]]] = {
    **{dialect.name: dialect for dialect in (DuckDbDialect, MySqlDialect, PostgresDialect, SqliteDialect)},
    "mariadb": MySqlDialect,  # its hook may name it so
}


def dialect_of(hook: DbApiHookLike) -> WarehouseDialect:
    """Return the dialect of a hook's database; portable SQL if there is no class for it.

    :raises UnsupportedWarehouse: the database is known not to work.
    """
    # The type of the connection first: the other name may need an account. Redshift's is PostgreSQL.
    conn_type = getattr(hook, "conn_type", None)
    check_names([conn_type])
    database = _database_name(hook)
    check_names([database])
    dialect = DIALECTS.get(database)
    return dialect() if dialect else GenericDialect(hook.dialect_name, hook.placeholder)


def _database_name(hook: DbApiHookLike) -> str:
    return re.split(r"[+.]", hook.dialect_name)[0]  # some hooks name the driver too
