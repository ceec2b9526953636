"""Files that scripts write from the tables and the dbt models are current, and metrics name what there is."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import data_contract
import dbt_columns
import jsonschema
import pytest
import views
import yaml
from sqlalchemy import Column, MetaData, Table, Text

from support import known_transfers
from support.repository import REPOSITORY

RUN_CONTRACT = "run: .venv/bin/python scripts/data_contract.py"
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


def test_the_data_contract_is_what_the_tables_say() -> None:
    assert data_contract.CONTRACT.read_text() == data_contract.contract(), RUN_CONTRACT


def test_the_data_contract_keeps_to_the_standards_schema() -> None:
    schema = json.loads((files("open_data_contract_standard") / "schema.json").read_text())
    contract = yaml.safe_load(data_contract.CONTRACT.read_text())
    jsonschema.validate(contract, schema)
    contract["schema"][0]["properties"][0]["logicalType"] = "text"
    with pytest.raises(jsonschema.ValidationError, match="text"):
        jsonschema.validate(contract, schema)


def test_the_data_contract_says_which_columns_have_personal_data() -> None:
    table = Table("people", MetaData(), Column("email", Text, info={"personal": True}), Column("position", Text))
    found = [data_contract.column_property(column).get("classification") for column in table.columns]
    assert found == ["personal", None]


def semantic(key: str) -> list[dict[str, Any]]:
    """Return a list of the definitions of metrics."""
    content = yaml.safe_load((views.PACKAGE / "models/semantic/_semantic.yml").read_text())
    found: list[dict[str, Any]] = content[key]
    return found


def test_a_measure_is_an_aggregate_of_a_marts_column() -> None:
    marts = yaml.safe_load((views.PACKAGE / "models/marts/_marts.yml").read_text())["models"]
    columns = {f"ref('{mart['name']}')": {column["name"] for column in mart["columns"]} for mart in marts}
    for model in semantic("semantic_models"):
        named = {each["expr"] for each in model["measures"]} | {model["defaults"]["agg_time_dimension"], "account"}
        assert named <= columns[model["model"]], model["name"]
        # What include/dashboard computes.
        assert {each["agg"] for each in model["measures"]} <= {"sum", "median"}


def test_every_metric_is_documented_and_compared_with_known_figures() -> None:
    metrics = {each["name"]: each["type_params"] for each in semantic("metrics")}
    assert first_cells("Metrics") == metrics.keys()
    parts = {metrics["outbound_transfer_pickup_rate"][part] for part in ("numerator", "denominator")}
    assert metrics.keys() - parts == {f"outbound_transfer_{name}" for name in known_transfers.METRICS}


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


def test_every_model_is_documented() -> None:
    assert first_cells("Models") == {file.stem for file in views.PACKAGE.glob("models/**/*.sql")}
