"""What a triggerer writes to the ledger: transfers that finished, and its calls."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.ledger import triggerer
from outbound_transfer.ledger.recorder import DeliveryRecorder
from outbound_transfer.ledger.triggerer import TriggererLedger
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.deliveries import DeliveryTables, TaskRef
from support.warehouses import sqlite_hook

SENT = Transfer("t1", "pending", "S", recipients=(Recipient("ann@example.com"),))


@pytest.fixture
def fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    file = tmp_path / "ledger.db"
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(file)}))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "ledger")
    yield sqlite_hook(file).fetch


def begin_row(tmp_path: Path, account: str) -> None:
    tables = DeliveryTables(Warehouse(sqlite_hook(tmp_path / "ledger.db")))
    task = TaskRef("conn", "dag", "deliver", "run", -1, 1)
    DeliveryRecorder(lambda: account, task, tables.save).record_transfer(SENT)


async def settled(ledger: TriggererLedger) -> None:
    """All that was begun is done, and the thread has written it."""
    await asyncio.gather(*ledger._tasks, return_exceptions=True)
    if ledger._writer is not None:
        assert await asyncio.to_thread(ledger._writer.close, 60)


async def test_an_end_that_no_worker_tells_is_written_by_the_triggerer(fetch, tmp_path, sandbox, connection) -> None:
    begin_row(tmp_path, sandbox.base_url.removeprefix("http://"))
    ledger = TriggererLedger()
    ledger.record_transfer(
        Transfer("t1", "complete", "S", recipients=SENT.recipients),
        connection,
        OutboundTransferHook(connection).get_async_account,
    )
    await settled(ledger)
    assert fetch("SELECT status, task_id FROM outbound_transfer_deliveries") == [("complete", "deliver")]


async def test_a_ledger_that_is_not_there_ends_no_wait(monkeypatch, sandbox, connection, caplog) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "nobody")
    ledger = TriggererLedger()
    ledger.record_transfer(SENT, connection, OutboundTransferHook(connection).get_async_account)
    await settled(ledger)
    assert "Could not write to the delivery ledger" in caplog.text


async def test_a_ledger_that_hangs_takes_no_more_than_so_many_notes(fetch, monkeypatch, sandbox, connection) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        begun.set()
        go_on.wait(60)
        raise OSError

    monkeypatch.setattr(triggerer, "open_tables", hang)
    monkeypatch.setattr(triggerer, "MAX_BACKLOG", 3)
    ledger = TriggererLedger()
    try:
        for number in range(10):
            ledger.record_transfer(
                Transfer(f"t{number}", "complete", "S"), connection, OutboundTransferHook(connection).get_async_account
            )
        await asyncio.gather(*ledger._tasks)
        await asyncio.to_thread(begun.wait, 60)
        assert ledger._writer is not None
        assert ledger._writer.backlog <= 3
    finally:
        go_on.set()
        await settled(ledger)
