"""Connections of databases that cannot be a warehouse are refused, with the hook that Airflow has for each of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.environments import UV, make_environment, python_of, run_uv
from support.repository import REPOSITORY, TESTS

pytestmark = pytest.mark.e2e

CONSTRAINTS = REPOSITORY / "constraints.txt"

PROVIDERS = ("amazon", "clickhousedb", "databricks", "google", "microsoft-mssql", "oracle", "trino")

#: The hook's class by type of connection.
REFUSED = {
    "athena": "AthenaSQLHook",
    "clickhouse": "ClickHouseHook",
    "databricks": "DatabricksHook",
    "gcpbigquery": "BigQueryHook",
    "mssql": "MsSqlHook",
    "oracle": "OracleHook",
    "redshift": "RedshiftSQLHook",
    "trino": "TrinoHook",
}


def install(interpreter: Path) -> None:
    packages = [f"apache-airflow-providers-{name}" for name in PROVIDERS]
    pins = ("--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS)
    run_uv("pip", "install", "--python", interpreter, *pins, "--editable", REPOSITORY, *packages)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    inputs = (REPOSITORY / "pyproject.toml", CONSTRAINTS, Path(__file__))
    interpreter = make_environment("refused", python_of("3.12", UV), inputs, install)
    connection = {"host": "warehouse.example.com", "login": "ann", "password": "secret", "schema": "analytics"}
    connections = {f"AIRFLOW_CONN_{name.upper()}": json.dumps({"conn_type": name, **connection}) for name in REFUSED}
    home = {"AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow"))}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    done = subprocess.run(
        [interpreter, Path(__file__).with_name("hooks.py")],
        env=environment | connections | home | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("conn_type", REFUSED)
def test_the_connection_is_refused_before_it_is_opened(conn_type: str, outcomes: dict[str, list[str]]) -> None:
    hook, error, text = outcomes[conn_type]
    # Airflow's hook of Databricks is for jobs, and no DbApiHook.
    wanted = {"databricks": ("NotASqlConnection", "is not a SQL connection")}
    named = f"stored in {conn_type}: name a connection of one of PostgreSQL"
    kind, words = wanted.get(conn_type, ("UnsupportedDatabase", named))
    assert (hook, error) == (REFUSED[conn_type], kind)
    assert words in text
    assert "secret" not in text
