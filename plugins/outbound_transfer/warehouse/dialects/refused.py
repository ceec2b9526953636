"""Databases that are known not to keep rows and cursor together, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from outbound_transfer.warehouse.errors import UnsupportedWarehouse

AUTOCOMMIT: Final = "each of its statements commits by itself, so a page could be loaded in part"
NO_KEYS: Final = "it enforces no keys, so the cursor or an event could be there twice"
_TEXT: Final = "its text columns change or reject text that a feed may contain"

#: Why databases are refused, by the type of their connection or the name of their dialect.
REFUSED: Final[Mapping[str, str]] = {
    "athena": f"Amazon Athena: {AUTOCOMMIT}",
    "clickhouse": f"ClickHouse: {AUTOCOMMIT}",
    "clickhousedb": f"ClickHouse: {AUTOCOMMIT}",
    "databricks": f"Databricks: {AUTOCOMMIT}",
    "gcpbigquery": f"Google BigQuery: {AUTOCOMMIT}",
    "bigquery": f"Google BigQuery: {AUTOCOMMIT}",
    "mssql": f"SQL Server: {_TEXT}",
    "oracle": f"Oracle: {_TEXT}",
    "presto": f"Presto: {AUTOCOMMIT}",
    "redshift": f"Amazon Redshift: {NO_KEYS}",
    "snowflake": f"Snowflake: {NO_KEYS}",
    "trino": f"Trino: {AUTOCOMMIT}",
}

#: What to do instead.
WAY_OUT: Final = (
    "Use PostgreSQL, MySQL, MariaDB, SQLite or DuckDB; or load the event feed with EventFeedToIcebergOperator, "
    "whose table such a database reads (docs/warehouses.md)"
)


def check_names(names: Iterable[str | None]) -> None:
    """Check the names that a connection has for its database.

    :raises UnsupportedWarehouse: one of them is known not to work.
    """
    for name in names:
        if name is not None and name in REFUSED:
            raise UnsupportedWarehouse(f"{REFUSED[name]}. {WAY_OUT}")


def check_driver(connection: Any) -> None:
    """Check the driver of an open connection.

    :raises UnsupportedWarehouse: it is MySQL's other one.
    """
    if type(connection).__module__.startswith("mysql.connector"):
        raise UnsupportedWarehouse(
            "The connection's driver is mysql-connector-python, and this package knows mysqlclient: take the field "
            "client out of the connection's extra"
        )
