"""The table definitions."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, String, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from outbound_transfer.store.tables import TABLES, with_names

COLUMNS = [pytest.param(column, id=str(column)) for table in TABLES for column in table.columns]


@pytest.mark.parametrize("commented", [*COLUMNS, *TABLES], ids=str)
def test_every_table_and_column_has_a_comment_that_every_catalog_holds(commented: Table | Column[Any]) -> None:
    assert commented.comment
    assert len(commented.comment) <= 1_024  # MySQL's limit of a column


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_names_of_a_warehouse_are_quoted_whatever_they_are(table: Table) -> None:
    statement = str(CreateTable(with_names(table, "A`b ", "select")).compile(dialect=mysql.dialect(paramstyle="named")))
    assert f"CREATE TABLE `select`.`A``b {table.name}` (" in statement
    assert all(f"`{column.name}` " in statement for column in table.columns)
    assert all(f"COMMENT '{column.comment.replace(chr(39), chr(39) * 2)}'" in statement for column in table.columns)


def test_a_copy_leaves_the_definitions_as_they_are() -> None:
    before = [(str(table), sorted(str(index.name) for index in table.indexes)) for table in TABLES]
    named = [with_names(table, "x_", None) for table in TABLES]
    assert [(str(table), sorted(str(index.name) for index in table.indexes)) for table in TABLES] == before
    assert {str(index.name) for table in named for index in table.indexes} == {
        "x_events_1",
        "x_feed_polls_1",
    }


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_the_keys_of_a_table_fit_into_those_of_mysql(table: Table) -> None:
    for key in (table.primary_key, *table.indexes):
        lengths = key.dialect_options["mysql"].get("length") or {}
        assert sum(_key_bytes(column, lengths) for column in key.columns) <= 3_072


def _key_bytes(column: Column[Any], lengths: dict[str, int]) -> int:
    """Of utf8mb4; a number or a time has 8 at most."""
    kind = column.type.dialect_impl(mysql.dialect())
    if not isinstance(kind, String):
        return 8
    length = lengths.get(str(column.name), kind.length)
    assert length, f"{column} has no length in a key"
    return 4 * length
