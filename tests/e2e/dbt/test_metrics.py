"""The metrics of the dbt package, as real MetricFlow computes them from transfers whose figures are known."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outbound_transfer.warehouse.database import Warehouse
from support import known_transfers
from support.databases import fresh_database
from support.dbt_project import Project
from support.known_transfers import FAILED_AUTHENTICATION, IN_ALL, METRICS, OTHER_ACCOUNT
from support.postgres import Database
from support.warehouses import Hook, duckdb_hook

pytestmark = pytest.mark.e2e

NOW = datetime.now(UTC)
#: East of UTC: a day of the session begins and ends at other times than a day in UTC.
ZONE = "Asia/Tokyo"
NAMES = ",".join(f"outbound_transfer_{name}" for name in METRICS)
TYPES = {"outbound_transfer_failed_authentication_types": ["it's refused", FAILED_AUTHENTICATION]}


@pytest.fixture(scope="module", params=["duckdb", "postgresql"])
def project(
    request: pytest.FixtureRequest, postgres_server: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """A project of an analyst who has built the package, in a session that is not in UTC."""
    folder = tmp_path_factory.mktemp("metrics")
    with pytest.MonkeyPatch.context() as patch, fresh_database(postgres_server) as database:
        patch.setenv("PGTZ", ZONE)
        if request.param == "duckdb":
            hook = duckdb_hook(folder / "warehouse.duckdb")
            place = {"type": "duckdb", "path": str(folder / "warehouse.duckdb"), "settings": {"TimeZone": ZONE}}
        else:
            hook = Hook("postgresql", database.connect)
            place = {"type": "postgres", "host": database.host, "port": 5432, "user": "postgres", "password": ""}
            place |= {"dbname": database.name}
        known_transfers.fill(Warehouse(hook), NOW)
        schema = {"duckdb": "main", "postgresql": "public"}[request.param]
        target = {"schema": "analytics", **place}
        project = Project(folder, target, {"outbound_transfer_schema": schema, **TYPES})
        _, build = project.run("deps", "run")
        assert build.success, build.error
        yield project


def query(project: Project, *arguments: str) -> list[list[str]]:
    """Return the rows of a query of all metrics: what it is grouped by, then the metrics."""
    file = project.folder / "answer.csv"
    project.metricflow("query", "--metrics", NAMES, *arguments, "--csv", str(file))
    with file.open(newline="") as rows:
        return [list(row.values()) for row in csv.DictReader(rows)]


def numbers(cells: list[str]) -> list[float | None]:
    return [float(cell) if cell else None for cell in cells]


def test_the_configuration_is_valid(project: Project) -> None:
    assert "ERRORS: 0" in project.metricflow("validate-configs")


def test_the_metrics_by_day_are_the_known_figures(project: Project) -> None:
    rows = query(project, "--group-by", "metric_time", "--order", "metric_time")
    found = {day[:10]: numbers(cells) for day, *cells in rows}
    assert found == {day: pytest.approx(list(row)) for day, row in sorted(known_transfers.by_day(NOW).items())}


def test_the_metrics_of_all_days_are_not_the_means_of_the_days(project: Project) -> None:
    (cells,) = query(project)
    assert numbers(cells) == pytest.approx(list(IN_ALL))


def test_an_account_has_its_own_metrics(project: Project) -> None:
    rows = query(project, "--group-by", "outbound_transfer_account")
    (cells,) = (cells for account, *cells in rows if account == OTHER_ACCOUNT)
    assert numbers(cells) == [1, 0, 1, 5_400, 0, None]


def test_failed_authentications_have_no_number_while_their_types_are_not_named(
    project: Project, tmp_path: Path
) -> None:
    target = project.target | {"schema": "unnamed"}
    unnamed = Project(tmp_path, target, project.variables | {name: [] for name in TYPES})
    _, build = unnamed.run("deps", "run")
    assert build.success, build.error
    (cells,) = query(unnamed)
    assert numbers(cells) == pytest.approx([*IN_ALL[:-1], None])
