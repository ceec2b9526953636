"""The recipes of docs/warehouses.md: parsed in each dialect, and run where that needs no account."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from outbound_transfer.lake.rows import SCHEMA
from support.object_folders import cut, destination, local_store
from support.repository import REPOSITORY

PAGE = (REPOSITORY / "docs/warehouses.md").read_text()

OBJECTS = PAGE.partition("## Recipes for loaders of objects")[2]

FOLDER = "s3://bucket/outbound_transfer/events"


class Recipe(NamedTuple):
    dialect: str
    sql: str


RECIPES = [
    Recipe(dialect, sql) for dialect, sql in re.findall(r"<!-- sql: (\w+) -->\n```sql\n(.+?)```", OBJECTS, re.DOTALL)
]


def parse(recipe: Recipe) -> exp.Expression:
    return sqlglot.parse_one(recipe.sql, read=recipe.dialect)


def identity(recipe: Recipe) -> str:
    return f"{recipe.dialect}-{recipe.sql.split(maxsplit=3)[:3]}"


def test_each_block_of_sql_names_its_dialect() -> None:
    assert len(RECIPES) == OBJECTS.count("```sql")
    assert {recipe.dialect for recipe in RECIPES} >= {
        "duckdb",
        "clickhouse",
        "snowflake",
        "bigquery",
        "redshift",
        "athena",
        "databricks",
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=identity)
def test_a_recipe_is_a_statement_of_its_dialect(recipe: Recipe) -> None:
    assert not isinstance(parse(recipe), exp.Command)


@pytest.mark.parametrize("recipe", RECIPES, ids=identity)
def test_a_recipe_has_the_columns_of_the_objects(recipe: Recipe) -> None:
    statement = parse(recipe)
    defined = [column.name for column in statement.find_all(exp.ColumnDef)]
    if defined:
        assert sorted(defined) == sorted(SCHEMA.names)
        partition = statement.find(exp.PartitionedByProperty)
        assert defined == (SCHEMA.names if partition is None else [*SCHEMA.names[1:], "account"])
    if isinstance(statement, exp.Select):
        read = {column.name for column in statement.find_all(exp.Column)}
        assert read
        assert read - {"format", "use_hive_partitioning"} <= set(SCHEMA.names)


def test_the_table_of_columns_is_that_of_the_objects() -> None:
    table = PAGE.partition("| column | type |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == SCHEMA.names


@pytest.mark.parametrize("recipe", [each for each in RECIPES if each.dialect == "duckdb"], ids=identity)
def test_duckdb_runs_its_recipe(recipe: Recipe, tmp_path: Path) -> None:
    feed = destination(local_store(tmp_path))
    feed.get_or_create_cursor()
    feed.load_page(cut(0, 5, 7))
    feed.load_page(cut(5, 5, 7))
    (row,) = duckdb.execute(recipe.sql.replace(FOLDER, str(tmp_path))).fetchall()
    assert row[1] == 7
