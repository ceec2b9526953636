"""A home of its own for Airflow, set before anything imports it."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from outbound_transfer_sandbox.testing import Sandbox

# How long an example takes says nothing on a machine that others share.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

REPOSITORY = Path(__file__).resolve().parents[1]

_home = Path(tempfile.mkdtemp(prefix="airflow-home-"))
atexit.register(shutil.rmtree, _home, ignore_errors=True)
(_home / "dags").mkdir()


@atexit.register
def _let_go_of_duckdb() -> None:
    # What SQLAlchemy registers for Airflow's models outlives the interpreter, and so, through the dialect, do types of
    # DuckDB, which then tells of each of them after the summary of the tests.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("duckdb_engine", "duckdb_provider")]:
        sys.modules[name].__dict__.clear()
    if dialects := sys.modules.get("sqlalchemy.dialects"):
        dialects.registry.impls.pop("duckdb", None)
    gc.collect()


for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[name]
os.environ |= {
    "AIRFLOW_HOME": str(_home),
    "AIRFLOW__CORE__DAGS_FOLDER": str(_home / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home}/airflow.db",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
}


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
