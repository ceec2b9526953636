"""Processes that share a key's allowance, and what they do when its database is gone."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.cluster import database
from outbound_transfer.cluster.allowance import SharedAllowance
from outbound_transfer.cluster.database import CALLS, find_database
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.operators.transfer import AttachFilesOperator, DeliverFilesOperator, SendTransferOperator
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.call_schedule import MARGIN, WINDOW
from outbound_transfer.protocol.messages import Upload
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries import DELIVERY, billed, counts, small_files, task_instance
from support.postgres import Database, running_server
from support.tasks import SimulatedClock

LEDGER = "AIRFLOW_CONN_LEDGER"


@pytest.fixture
def share_through(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Configure the shared database by its connection. Its clock stands still."""

    def share(connection: str) -> None:
        monkeypatch.setenv(LEDGER, connection)
        monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "ledger")
        monkeypatch.setattr(database, "_databases", {})
        monkeypatch.setattr(Warehouse, "epoch_time", lambda warehouse, tx: 1_790_000_000.0)

    return share


def allowance_of(hook: OutboundTransferHook) -> Any:
    with hook:
        return hook.get_conn()._allowance


def test_nothing_is_shared_unless_a_database_is_configured(connection) -> None:
    assert allowance_of(OutboundTransferHook(connection)) is None


def test_every_hook_of_a_key_shares_one_allowance(connection, sandbox, share_through, tmp_path, monkeypatch) -> None:
    share_through(json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}))
    of_another = json.loads(sandbox.airflow_connection()) | {"password": sandbox.new_key("bob@example.com")}
    monkeypatch.setenv("AIRFLOW_CONN_BOB", json.dumps(of_another))
    for _ in range(60):
        assert allowance_of(OutboundTransferHook(connection)).reserve() == 0.0
    assert allowance_of(OutboundTransferHook(connection)).reserve() == WINDOW + MARGIN
    assert allowance_of(OutboundTransferHook("bob")).reserve() == 0.0
    assert allowance_of(OutboundTransferHook(connection, is_poll=True)).reserve() == 0.0


def test_a_key_that_has_more_calls(connection, sandbox, share_through, tmp_path, monkeypatch) -> None:
    share_through(json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}))
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", sandbox.airflow_connection(calls_per_minute="100"))
    allowance = allowance_of(OutboundTransferHook(connection))
    assert [allowance.reserve() for _ in range(100)] == [0.0] * 100
    assert allowance.reserve() == WINDOW + MARGIN


def test_the_key_itself_is_not_stored(connection, sandbox, share_through, tmp_path) -> None:
    file = tmp_path / "ledger.db"
    share_through(json.dumps({"conn_type": "sqlite", "host": str(file)}))
    with OutboundTransferHook(connection) as hook:
        hook.perform(endpoints.list_transfers(limit=1))
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    assert b"key_allowance" in stored
    assert sandbox.transfer_api_key.encode() not in stored


@pytest.mark.parametrize(
    ("connection_of_database", "logged"),
    [
        (None, "This process cannot share the key's calls: AirflowNotFoundException"),
        ({"conn_type": "http", "host": "example.com"}, "Could not share the key's calls through connection 'ledger'"),
        ({"conn_type": "sqlite", "host": "/nowhere/ledger.db"}, "Could not share the key's calls"),
        ({"conn_type": "postgres", "host": "127.0.0.1", "port": 9}, "Could not share the key's calls"),
    ],
    ids=["no connection", "no database", "no folder", "no server"],
)
def test_without_its_database_a_hook_works_alone(
    connection, sandbox, share_through, monkeypatch, caplog, connection_of_database, logged
) -> None:
    share_through(json.dumps(connection_of_database))
    if connection_of_database is None:
        monkeypatch.delenv(LEDGER)
    with OutboundTransferHook(connection) as hook:
        for _ in range(3):
            hook.perform(endpoints.list_transfers(limit=1))
    assert len(sandbox.requests()) == 3
    assert [logged in message for message in caplog.messages if "key's calls" in message] == [True]


def test_a_file_of_duckdb_is_not_shared(connection, share_through, tmp_path) -> None:
    share_through(json.dumps({"conn_type": "duckdb", "host": str(tmp_path / "ledger.duckdb")}))
    assert find_database(CALLS) is None


def kill_postgres(server: Database) -> None:
    with closing(server.connect(autocommit=True)) as connection:
        (pid_file,) = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
    os.kill(int(pid_file.split()[0]), signal.SIGKILL)


def test_a_database_that_is_killed_fails_no_delivery(
    connection, sandbox: Sandbox, share_through, tmp_path: Path, monkeypatch, caplog
) -> None:
    caplog.set_level(logging.WARNING)
    reserve, calls = SharedAllowance.reserve, []

    def reserve_and_kill(allowance: SharedAllowance) -> float:
        calls.append(None)
        if len(calls) == 3:
            kill_postgres(server)
        return reserve(allowance)

    with running_server() as server:
        share_through(server.airflow_connection)
        monkeypatch.setattr(SharedAllowance, "reserve", reserve_and_kill)
        task = task_instance(
            DeliverFilesOperator, SimulatedClock(sandbox), files=small_files(tmp_path / "in", 5), **DELIVERY
        )
        result = task.run()
    assert len(calls) == 7
    assert billed(sandbox) == {result["id"]: 1}
    assert sum("Could not share the key's calls" in message for message in caplog.messages) == 1


@pytest.fixture
def busy_key(share_through, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key whose next call is always half a minute away."""
    share_through(json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}))
    monkeypatch.setattr(SharedAllowance, "reserve", lambda allowance: 30.0)


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("max_parallel_uploads", [1, 4])
def test_a_delivery_with_a_busy_key_advances_with_each_deferral(
    connection, sandbox: Sandbox, busy_key, tmp_path: Path, deferrable, max_parallel_uploads
) -> None:
    task = task_instance(
        DeliverFilesOperator,
        SimulatedClock(sandbox),
        files=small_files(tmp_path / "in", 5),
        deferrable=deferrable,
        max_parallel_uploads=max_parallel_uploads,
        **DELIVERY,
    )
    result = task.run()
    assert billed(sandbox) == {result["id"]: 1}
    assert counts(sandbox)["POST", "files", 201] == 5
    assert task.deferrals <= 7 * deferrable


def test_each_task_of_a_delivery_ends_with_a_busy_key(connection, sandbox: Sandbox, busy_key, tmp_path: Path) -> None:
    with OutboundTransferHook(connection, sleep=lambda seconds: None) as hook:
        draft = hook.create_transfer(build_new_transfer(subject="Report", recipients=["ann@example.com"])).id
    time, arguments = SimulatedClock(sandbox), {"transfer_id": draft, "deferrable": True}
    attaching = task_instance(AttachFilesOperator, time, files=small_files(tmp_path / "in", 5), **arguments)
    assert len(attaching.run()) == 5
    assert attaching.deferrals <= 6
    assert counts(sandbox)["POST", "files", 201] == 5
    sending = task_instance(SendTransferOperator, time, **arguments)
    sending.run()
    assert sending.deferrals <= 2, "for its read, and for its send"
    assert billed(sandbox) == {draft: 1}


def test_a_deferral_before_a_create_is_no_create_in_doubt(connection, sandbox: Sandbox, busy_key, tmp_path) -> None:
    sandbox.plan_faults({"kind": "error", "status": 502, "method": "POST", "path": "/v1/transfers", "effect": "after"})
    files = small_files(tmp_path / "in", 1)
    task = task_instance(DeliverFilesOperator, SimulatedClock(sandbox), files=files, deferrable=True, **DELIVERY)
    result = task.run()
    assert billed(sandbox) == {result["id"]: 1}
    assert task.deferrals > 1
    sandbox.assert_all_faults_triggered()


def test_the_time_that_a_send_has_waited_for_a_slot_outlives_a_deferral(connection, sandbox: Sandbox, busy_key) -> None:
    """Its limit is not begun anew."""
    sandbox.patch_account(outstanding_transfer_limit=0)
    new = build_new_transfer(subject="Report", recipients=["ann@example.com"])
    time = SimulatedClock(sandbox)
    with OutboundTransferHook(connection, sleep=lambda seconds: None) as hook:
        draft = hook.create_transfer(new).id
        hook.attach_file(draft, Upload("a", 1, lambda: iter([b"a"])))
    sending = task_instance(SendTransferOperator, time, transfer_id=draft, deferrable=True, slot_timeout=300)
    with pytest.raises(Exception, match="transfer_limit_reached"):
        sending.run()
    assert time.now < 900
