"""Columns with personal data are marked: each in which a person is found who gets a delivery."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from outbound_transfer.warehouse.tables import PERSONAL_DATA, TABLES
from support.warehouses import sqlite_hook

ADDRESS = "Quasimodo+Tag@example.com"
TRACE = re.compile(r"quasimodo|Quasi M\.", re.IGNORECASE)
MARKED = [column for table in TABLES for column in table.columns if column.info.get("personal")]


@pytest.fixture
def warehouse(connection: str, sandbox: Any, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Deliver to a person who picks up, list the transfers and load the feed: all into one database."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "w.db")}))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "warehouse")
    (tmp_path / "a.csv").write_text("a")
    recipients = [{"email": ADDRESS, "name": "Quasi M."}]
    sent = task(
        DeliverFilesOperator, subject=f"For {ADDRESS}", recipients=recipients, files=str(tmp_path / "a.csv")
    ).run()
    sandbox.pickup(sent["id"], ADDRESS)
    task(TransfersToSqlOperator, "transfers", sql_conn_id="warehouse").run()
    task(EventFeedToSqlOperator, "feed", sql_conn_id="warehouse").run()
    return sqlite_hook(tmp_path / "w.db")


def test_every_column_with_a_person_is_marked(warehouse: Any) -> None:
    found = set()
    for (name,) in warehouse.fetch("SELECT name FROM sqlite_master WHERE type = 'table'"):
        columns = [column for (column,) in warehouse.fetch(f"SELECT name FROM pragma_table_info('{name}')")]
        for row in warehouse.fetch(f'SELECT * FROM "{name}"'):
            found |= {(name, column) for column, value in zip(columns, row, strict=True) if TRACE.search(str(value))}
    unmarked = found - {(f"outbound_transfer_{column.table.name}", column.name) for column in MARKED}
    assert not unmarked
    assert {name.removeprefix("outbound_transfer_") for name, _ in found} == {
        *("events", "transfers", "recipients", "deliveries", "delivery_recipients")
    }


def test_a_mark_is_in_the_comment_of_its_column() -> None:
    assert MARKED
    for column in MARKED:
        assert str(column.comment).endswith(PERSONAL_DATA)
