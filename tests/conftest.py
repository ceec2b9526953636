"""A home of its own for Airflow, set before anything imports it."""

from __future__ import annotations

import atexit
import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from outbound_transfer_sandbox.testing import Sandbox
from support import airflow_home  # noqa: F401  # before anything imports Airflow

#: Second drivers of a database. Their tests are those of the first, and run by night.
SECOND_DRIVERS = {"psycopg2", "psycopg2-dictionaries"}

#: Databases besides SQLite, which runs what does not depend on the dialect. The others run it by night.
OTHER_DATABASES = {"postgres", "psycopg", "duckdb", "mysqlclient"}

#: Folders and files of long searches, of what other targets run in full, and of tests of what seldom changes.
NIGHTLY_PATHS = tuple(
    f"tests/{path}"
    for path in (
        *("resilience/crash/", "resilience/crash_ingest/", "resilience/fuzz/", "resilience/stateful/"),
        "resilience/delivery_keys/",
        "resilience/fault_matrix/test_listings.py",
        *(f"sandbox/contract/test_{subject}.py" for subject in ("fuzz", "space", "state_machine")),
        *("benchmarks/", "e2e/airflow/", "e2e/dbt/", "e2e/readme/", "e2e/warehouses/"),
        "e2e/browser/test_sandbox_ui.py",
    )
)

#: Files that take a while: processes that race, lakes and stores with their servers.
SLOW_PATHS = tuple(
    f"tests/{path}"
    for path in (
        *("integration/lake/", "integration/stores/", "e2e/cluster/"),
        "integration/test_privacy.py",
        "integration/store/test_concurrent_ingest.py",
    )
)

#: DAG runs of a change: of the DAGs that are shipped, and of each version of Airflow. Others run by night.
DAG_RUNS = ("tests/integration/test_dags.py", "tests/versions/")

pytest_plugins = ["support.databases", "support.query_databases", "support.dag_runs"]

# How long an example takes says nothing on a machine that others share.
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# A change is judged by the same examples each time; `make nightly` looks for others, with a seed that it prints.
settings.register_profile("repeatable", derandomize=True, max_examples=30, **_UNTIMED)
settings.register_profile("chance", derandomize=False, print_blob=True, **_UNTIMED)
settings.load_profile("repeatable")


@atexit.register
def _let_go_of_duckdb() -> None:
    # What SQLAlchemy registers for Airflow's models outlives the interpreter, and so, through the dialect, do types of
    # DuckDB, which then tells of each of them after the summary of the tests.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("duckdb_engine", "duckdb_provider")]:
        sys.modules[name].__dict__.clear()
    if dialects := sys.modules.get("sqlalchemy.dialects"):
        dialects.registry.impls.pop("duckdb", None)
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs a Dag, what repeats a test with another driver or database, and what the night is for."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if any(isinstance(value, str) and value in SECOND_DRIVERS for value in parameters.values()):
            item.add_marker(pytest.mark.nightly)
        if item.get_closest_marker("any_dialect") and not OTHER_DATABASES.isdisjoint(map(str, parameters.values())):
            item.add_marker(pytest.mark.nightly)
        if item.nodeid.startswith(SLOW_PATHS):
            item.add_marker(pytest.mark.slow)
        if item.nodeid.startswith(NIGHTLY_PATHS):
            item.add_marker(pytest.mark.nightly)
        if "run_dag" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.e2e)
            if not item.nodeid.startswith(DAG_RUNS):
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(autouse=True)
def secrets_forgotten() -> Iterator[None]:
    """Let Airflow forget the secrets of a test: with each further one, it compiles the pattern of all of them anew."""
    yield
    if "airflow" not in sys.modules:
        return
    for module in [sys.modules[name] for name in list(sys.modules) if name.endswith("secrets_masker")]:
        if hasattr(module, "_secrets_masker"):
            masker = module._secrets_masker()
            masker.patterns, masker.replacer = set(), None


@pytest.fixture
def sandbox(transfer_sandbox: Sandbox) -> Sandbox:
    """An empty service on a free port."""
    return transfer_sandbox


@pytest.fixture
def connection(sandbox: Sandbox) -> str:
    """The id of Airflow's connection to the sandbox."""
    return "outbound_transfer_default"


@pytest.fixture
def hook(connection: str) -> Iterator[Any]:
    """The sandbox through the hook."""
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

    with OutboundTransferHook(connection) as hook:
        yield hook


@pytest.fixture
def recipients_pick_up(sandbox: Sandbox) -> Iterator[None]:
    """Every recipient of every transfer that is sent collects it within moments."""
    done = threading.Event()

    def pick_up() -> None:
        while not done.wait(0.2):
            for row in sandbox.ledger():
                if row["kind"] == "emailed":
                    sandbox.pickup(row["transfer_id"], row["recipient"])

    thread = threading.Thread(target=pick_up)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
