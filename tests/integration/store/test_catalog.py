"""Comments of tables and columns, where the database keeps them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbound_transfer.store.tables import TABLES, Tables
from support.warehouses import Hook

PREFIX = "100%s 'it'"

QUERIES = {
    "psycopg": (
        "SELECT relname, obj_description(oid, 'pg_class') FROM pg_class WHERE relkind = 'r'",
        "SELECT relname, attname, col_description(oid, attnum) FROM pg_class JOIN pg_attribute ON attrelid = oid"
        " WHERE relkind = 'r' AND attnum > 0",
    ),
    "mysqlclient": (
        "SELECT table_name, table_comment FROM information_schema.tables WHERE table_schema = database()",
        "SELECT table_name, column_name, column_comment FROM information_schema.columns"
        " WHERE table_schema = database()",
    ),
    "duckdb": (
        "SELECT table_name, comment FROM duckdb_tables()",
        "SELECT table_name, column_name, comment FROM duckdb_columns()",
    ),
}


@pytest.mark.parametrize("database", QUERIES)
def test_comments_are_in_the_catalog(hook_of: Callable[[str], Hook], database: str) -> None:
    hook = hook_of(database)
    Tables(hook, prefix=PREFIX).create(TABLES)
    of_tables, of_columns = QUERIES[database]

    assert {(PREFIX + table.name, table.comment) for table in TABLES} <= set(hook.fetch(of_tables))
    columns = {(PREFIX + table.name, column.name, column.comment) for table in TABLES for column in table.columns}
    assert columns <= set(hook.fetch(of_columns))
