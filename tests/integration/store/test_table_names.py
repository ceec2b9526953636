"""Names of tables and schemas: quoted, bounded, and apart from each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.store.config import MAX_TABLE_LENGTH
from outbound_transfer.store.errors import InvalidName
from outbound_transfer.store.tables import TABLES, Tables
from support.feed_pages import PAGES, TABLE_NAMES, tables
from support.warehouses import Hook, sqlite_hook

HOSTILE = ['x"; DROP TABLE victim; --', "1%s %(a)s %% ?:a'$1 ï表.b "]


@pytest.mark.parametrize("prefix", HOSTILE)
def test_names_are_quoted(any_hook: Hook, prefix: str) -> None:
    any_hook.run("CREATE TABLE victim (a int)")
    feed = tables(any_hook, prefix=prefix)
    feed.get_or_create_cursor()
    assert feed.load_page(PAGES[0]).new_events == 3
    assert feed.get_or_create_cursor() == 4
    assert any_hook.fetch("SELECT * FROM victim") == []
    quoted = '"' + prefix.replace('"', '""') + 'events"'
    assert any_hook.fetch(f"SELECT count(*) FROM {quoted}") == [(3,)]


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


def test_sqlite_takes_its_main_schema(tmp_path: Path) -> None:
    feed = tables(sqlite_hook(tmp_path / "warehouse.db"), schema="main")
    assert feed.get_or_create_cursor() == 0
    assert feed.load_page(PAGES[0]).new_events == 3


def test_missing_schema_is_reported(hook: Hook) -> None:
    with pytest.raises(Exception, match="nowhere"):
        tables(hook, schema="nowhere").get_or_create_cursor()


def test_tables_of_two_prefixes_do_not_mix(hook: Hook) -> None:
    for prefix in ("a_", "b_"):
        feed = tables(hook, prefix=prefix)
        feed.get_or_create_cursor()
        assert feed.load_page(PAGES[0]).new_events == 3


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


def test_a_prefix_leaves_room_for_each_table() -> None:
    assert max(len(table.name) for table in TABLES) == MAX_TABLE_LENGTH


def test_a_role_that_may_not_create_tables_uses_those_that_are_there(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    tables(hook, "other").get_or_create_cursor()
    role = "role_" + hook.fetch("SELECT current_database()")[0][0]
    hook.run(f"CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")

    def connect() -> Any:
        connection = hook.get_conn()
        connection.execute(f"SET SESSION AUTHORIZATION {role}")
        connection.commit()
        return connection

    try:
        feed = tables(Hook("postgresql", connect))
        assert feed.get_or_create_cursor() == 0
        assert feed.load_page(PAGES[0]).new_events == 3
    finally:
        hook.run(f"DROP OWNED BY {role}; DROP ROLE {role}")
