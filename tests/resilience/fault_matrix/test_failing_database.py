"""Every failure of the database that shares a key's calls, at every call of a delivery, beside a service that fails."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.cluster import database
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.warehouse import key_allowance
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries import DELIVERY, billed, small_files, task_instance
from support.tasks import SimulatedClock

CALLS = ["POST /v1/transfers", *["POST */files"] * 3, "POST */send"]
START = 1_790_000_000.0
FULL = json.dumps({"calls": [START + 3_600 + number / 10 for number in range(60)]})


def refuse(_: Callable[[], Any], __: Path) -> Any:
    raise sqlite3.OperationalError("disk I/O error")


def refuse_late(change: Callable[[], Any], _: Path) -> Any:
    """The row is changed, and nobody is told."""
    change()
    raise sqlite3.OperationalError("disk I/O error")


def hang(change: Callable[[], Any], _: Path) -> Any:
    time.sleep(0.3)
    return change()


def after(statement: str, *parameters: str) -> Callable[[Callable[[], Any], Path], Any]:
    def change_after(change: Callable[[], Any], file: Path) -> Any:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(statement, parameters)
            connection.commit()
        return change()

    return change_after


FAILURES = {
    "refuses": refuse,
    "changes the row and fails": refuse_late,
    "hangs": hang,
    "loses the row": after("DELETE FROM outbound_transfer_key_allowance"),
    "has a damaged row": after("UPDATE outbound_transfer_key_allowance SET schedule = ?", '{"calls": ["x"]}'),
    "has no table": after("DROP TABLE outbound_transfer_key_allowance"),
    "is reserved for an hour": after("UPDATE outbound_transfer_key_allowance SET schedule = ?", FULL),
}
SERVICE = {
    "works": None,
    "applies the call and fails": {"kind": "error", "status": 502, "effect": "after"},
    "refuses the call": {"kind": "error", "status": 429, "retry_after": "20"},
}


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICE)
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_delivery_is_delivered_once_whatever_the_database_does(
    connection, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deferrable, failure, service
) -> None:
    clock = SimulatedClock(sandbox)
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "ledger")
    monkeypatch.setattr(database, "TIMEOUT", 1.0 if failure == "hangs" else 5.0)
    monkeypatch.setattr(Warehouse, "epoch_time", lambda warehouse, tx: START + clock.now)
    change_row = key_allowance._change_once
    for position, call in enumerate(CALLS):
        file = tmp_path / f"ledger{position}.db"
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(file)}))
        monkeypatch.setattr(database, "_databases", {})
        changes = itertools.count()

        def change(*what: Any, at: Any = (changes, position, file)) -> Any:
            counter, place, path = at
            unspoiled = partial(change_row, *what)
            return FAILURES[failure](unspoiled, path) if next(counter) == place else unspoiled()

        monkeypatch.setattr(key_allowance, "_change_once", change)
        if fault := SERVICE[service]:
            method, path = call.split()
            sandbox.plan_faults({**fault, "method": method, "path": path})
        before = billed(sandbox)
        task = task_instance(
            DeliverFilesOperator,
            clock,
            files=small_files(tmp_path / f"in{position}", 3),
            deferrable=deferrable,
            max_parallel_uploads=1,
            **DELIVERY,
        )
        result = task.run()
        assert billed(sandbox) - before == {result["id"]: 1}, call
        assert next(changes) > position, "the failure has happened"
        clock.now += 7_200
        sandbox.advance_clock(7_200)
