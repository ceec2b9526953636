"""Files that scripts write from the tables and the dbt models are current."""

from __future__ import annotations

import re

import dbt_columns
import pytest
import views
import yaml

from support.repository import REPOSITORY

RUN_VIEWS = "run: .venv/bin/python scripts/views.py"
RUN_COLUMNS = "run: .venv/bin/python scripts/dbt_columns.py"


def test_the_views_are_what_the_marts_say() -> None:
    assert views.FILE.read_text() == views.content(), RUN_VIEWS


def test_every_mart_has_a_view() -> None:
    assert {file.stem for file in (views.PACKAGE / "models/marts").glob("*.sql")} == views.VIEWS.keys()


def test_the_sources_of_dbt_are_what_the_tables_say() -> None:
    assert dbt_columns.SOURCES.read_text() == dbt_columns.sources(), RUN_COLUMNS
    assert dbt_columns.BLOCKS.read_text() == dbt_columns.blocks(), RUN_COLUMNS


@pytest.mark.parametrize("table", dbt_columns.READ, ids=lambda table: table.name)
def test_each_staging_model_has_every_column_of_its_table(table) -> None:
    model = (dbt_columns.STAGING / f"stg_outbound_transfer__{table.name}.sql").read_text()
    # In quotes: the names in a lake differ.
    assert [column.name for column in table.columns if f"'{column.name}'" not in model] == []


def first_cells(heading: str) -> set[str]:
    """Return the names in the first column of a table of docs/dbt.md."""
    section = (REPOSITORY / "docs/dbt.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))


def test_every_variable_is_documented() -> None:
    used = {
        name
        for file in views.PACKAGE.rglob("*")
        if file.suffix in {".sql", ".yml"}
        for name in re.findall(r"var\('(\w+)'", file.read_text())
    }
    project = yaml.safe_load((views.PACKAGE / "dbt_project.yml").read_text())
    of_the_target = {"outbound_transfer_database", "outbound_transfer_schema"}
    assert first_cells("Variables") == used == project["vars"]["outbound_transfer"].keys() | of_the_target


def test_the_types_of_marts_are_enforced() -> None:
    project = yaml.safe_load((views.PACKAGE / "dbt_project.yml").read_text())
    assert project["models"]["outbound_transfer"]["marts"]["+contract"] == {"enforced": True}


def test_every_mart_is_documented() -> None:
    assert first_cells("Models") == {file.stem for file in views.PACKAGE.glob("models/marts/*.sql")}
