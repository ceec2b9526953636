"""A delivery, a wait and an ingestion as Dag runs of this version of Airflow, with each store of a task's memory."""

from __future__ import annotations

import inspect
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.core_api import security

from outbound_transfer.ui.plugin import OutboundTransferPlugin
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.dag_runs import Run
from support.keyed_tasks import sqlite_connection

pytestmark = pytest.mark.e2e

DELIVERY = """
    from airflow.sdk import DAG
    from outbound_transfer.operators.transfer import DeliverFilesOperator

    with DAG("deliver", schedule=None):
        DeliverFilesOperator(
            task_id="deliver", files={files!r}, subject="Report", recipients=["ann@example.com"],
            wait=True, deferrable=True, poke_interval=1, timeout=120,
        )
"""

INGESTION = """
    from airflow.sdk import DAG
    from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator

    with DAG("ingest", schedule=None):
        EventFeedToSqlOperator(task_id="ingest", sql_conn_id="warehouse", deferrable=True)
"""


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a SQLite database, to which the connection ``warehouse`` leads."""
    file = tmp_path / "warehouse.db"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(file)}))
    return file


def rows(warehouse: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(warehouse)) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def deliver(
    run_dag: Callable[..., Run], connection: str, sandbox: Sandbox, recipients_pick_up: None, tmp_path: Path
) -> Callable[[], None]:
    """Run the delivery, and check that it is sent and billed once, and picked up."""

    def deliver() -> None:
        report = tmp_path / "report.csv"
        report.write_bytes(b"a,b\n1,2\n")
        run = run_dag(DELIVERY.format(files=str(report)))
        assert run.states() == {"deliver": "success"}
        transfer_id = sandbox.assert_sent_once()
        sandbox.assert_delivered(transfer_id, {"report.csv": report}, "ann@example.com")
        assert run.xcom("deliver")["id"] == transfer_id
        assert sandbox.transfer(transfer_id)["status"] == "complete"

    return deliver


def test_a_delivery_that_a_database_remembers(
    deliver: Callable[[], None], warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.keep_keys_in(monkeypatch, sqlite_connection(warehouse))
    deliver()
    assert len(memory.remembered_runs(warehouse)) == 1


def test_a_delivery_without_any_setting(deliver: Callable[[], None]) -> None:
    deliver()


def test_an_ingestion_lands_every_event_once(
    run_dag: Callable[..., Run], connection: str, sandbox: Sandbox, warehouse: Path
) -> None:
    sandbox.add_events(700)
    run = run_dag(INGESTION)
    assert run.states() == {"ingest": "success"}
    found = Counter(event_id for (event_id,) in rows(warehouse, "SELECT event_id FROM outbound_transfer_events"))
    assert len(found) == found.total() == 700


def test_there_is_a_page_where_airflow_checks_the_dag_of_a_query() -> None:
    checks = "query_params" in inspect.getsource(security.requires_access_dag)
    plugin = OutboundTransferPlugin
    assert [bool(views) for views in (plugin.fastapi_apps, getattr(plugin, "external_views", []))] == [checks] * 2
