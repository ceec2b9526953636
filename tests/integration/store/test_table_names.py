"""Names of tables and schemas: quoted, bounded, and apart from each other; comments in the catalog."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbound_transfer.store.errors import InvalidName
from outbound_transfer.store.tables import TABLES, Tables
from support.feed_pages import PAGES, TABLE_NAMES, tables
from support.warehouses import Hook

HOSTILE = ['x"; DROP TABLE victim; --', "1%s %(a)s %% ?:a'$1 ï表.b "]


def test_names_are_quoted_and_tables_of_two_prefixes_do_not_mix(any_hook: Hook) -> None:
    any_hook.run("CREATE TABLE victim (a int)")
    for prefix in HOSTILE:
        feed = tables(any_hook, prefix=prefix)
        feed.get_or_create_cursor()
        assert feed.load_page(PAGES[0]).new_events == 3
        assert feed.get_or_create_cursor() == 4
        quoted = '"' + prefix.replace('"', '""') + 'events"'
        assert any_hook.fetch(f"SELECT count(*) FROM {quoted}") == [(3,)]
    assert any_hook.fetch("SELECT * FROM victim") == []


@pytest.mark.parametrize("schema", [*HOSTILE, "select", "Mixed"])
def test_a_schema_is_quoted_too(hook_of: Callable[[str], Hook], schema: str) -> None:
    hook = hook_of("psycopg")
    quoted = '"' + schema.replace('"', '""') + '"'
    hook.run(f"CREATE SCHEMA {quoted}")
    feed = tables(hook, schema=schema, prefix=schema)
    feed.get_or_create_cursor()
    assert feed.load_page(PAGES[0]).new_events == 3
    names = hook.fetch("SELECT tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")
    assert sorted(names) == sorted((schema + suffix,) for suffix in TABLE_NAMES)


@pytest.mark.parametrize("name", ["x" * 50, "é" * 25, "a\0b", "\ud800"])
def test_a_name_that_postgres_would_change_is_refused(hook_of: Callable[[str], Hook], name: str) -> None:
    hook = hook_of("psycopg")
    with pytest.raises(InvalidName):
        tables(hook, prefix=name)


def test_the_longest_prefix_leaves_every_table_its_name(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    Tables(hook, prefix="x" * 49).create(TABLES)
    names = {name for (name,) in hook.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    assert names == {"x" * 49 + table.name for table in TABLES}


def test_a_duckdb_schema_may_be_called_like_the_tables(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("duckdb")
    hook.run("CREATE SCHEMA outbound_transfer")
    feed = tables(hook, schema="outbound_transfer")
    assert feed.get_or_create_cursor() == 0
    assert feed.load_page(PAGES[0]).new_events == 3


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
