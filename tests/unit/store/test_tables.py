"""The tables' definitions and the values of their columns, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, String, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite

from outbound_transfer.store.tables import TABLES
from outbound_transfer.store.types import JSON, Text, Time

DIALECTS = [postgresql.dialect(), mysql.dialect(), sqlite.dialect()]


def test_every_table_and_column_has_a_comment_that_every_catalog_holds() -> None:
    comments = {str(each): each.comment for table in TABLES for each in (table, *table.columns)}
    assert not [name for name, comment in comments.items() if not comment or len(comment) > 1_024]  # limit of MySQL


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


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_time_without_a_zone_or_in_no_year_is_not_stored_as_another(dialect: sa.Dialect) -> None:
    with pytest.raises(ValueError, match="has no zone"):
        Time().process_bind_param(datetime(2026, 1, 1), dialect)
    with pytest.raises(ValueError, match="has no valid year in UTC"):
        Time().process_bind_param(datetime.min.replace(tzinfo=timezone(timedelta(hours=2))), dialect)


def test_times_of_sqlite_sort_as_texts() -> None:
    east = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    first, last = (each.replace(tzinfo=UTC) for each in (datetime.min, datetime.max))
    moments = [first, east, datetime(2026, 1, 1, 0, 0, 0, 1, UTC), last]
    texts = [str(Time().process_bind_param(each, sqlite.dialect())) for each in moments]
    assert texts == sorted(texts)
    assert texts[1] == "2025-12-31T23:00:00.000000Z"
    assert {len(each) for each in texts} == {27}


def test_json_is_long_text_in_mysql_whose_json_would_round_numbers() -> None:
    dialect = mysql.dialect()
    assert JSON.compile(dialect).startswith("LONGTEXT ")
    query = sa.select(sa.Table("t", sa.MetaData(), sa.Column("j", JSON)).c.j)
    assert "CAST" not in str(query.compile(dialect=dialect))  # the server would make NULL of a long text


@pytest.mark.parametrize(("is_mariadb", "exact"), [(True, "utf8mb4_nopad_bin"), (False, "utf8mb4_0900_bin")])
def test_texts_of_mysql_are_told_apart_by_case_and_trailing_spaces(is_mariadb: bool, exact: str) -> None:
    dialect = mysql.dialect(is_mariadb=is_mariadb)
    kind = Text(250).load_dialect_impl(dialect).compile(dialect)
    assert kind == f"VARCHAR(250) CHARACTER SET utf8mb4 COLLATE {exact}"
