"""Where a task remembers: Airflow's task state store, the table of a connection, or that of the local file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.delivery.memory_store import state_store
from outbound_transfer.operators.transfer import CreateTransferOperator, DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.warehouse.errors import MemoryUnavailable, NoMemoryTable
from outbound_transfer.warehouse.local_file import LOCAL_FILE
from outbound_transfer.warehouse.memory_table import MemoryRow
from outbound_transfer.warehouse.timestamps import utc_now
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries import DELIVERY, billed
from support.keyed_tasks import sqlite_connection
from support.tasks import FakeTaskInstance, InMemoryStateStore, SimulatedClock, again


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "states.db"
    monkeypatch.setenv("AIRFLOW_CONN_STATES", sqlite_connection(file))
    return file


@pytest.fixture
def deliver(connection: str, sandbox: Sandbox, tmp_path: Path) -> FakeTaskInstance:
    """A delivery in an Airflow without a task state store."""
    file = tmp_path / "a.csv"
    file.write_bytes(b"a,b\n")
    values = {**DELIVERY, "files": str(file)}
    return FakeTaskInstance(lambda: DeliverFilesOperator(task_id="task", **values), SimulatedClock(sandbox), store=None)


def remembered(file: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT dag_id, task_id, try_number FROM outbound_transfer_memory").fetchall()


@pytest.mark.usefixtures("single_machine")
@pytest.mark.parametrize(
    ("has_native", "options", "expected"),
    [
        (True, [], None),
        (True, ["LEDGER_CONN_ID"], None),
        (True, ["STATE_CONN_ID"], "connection 'states'"),
        (False, ["STATE_CONN_ID"], "connection 'states'"),
        (False, ["LEDGER_CONN_ID"], "connection 'states'"),
        (False, [], "the file '{home}/outbound_transfer.db'"),
    ],
)
def test_the_first_available_store_is_used(
    states: Path,
    single_machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_native: bool,
    options: list[str],
    expected: str | None,
) -> None:
    for option in options:
        monkeypatch.setenv(f"AIRFLOW__OUTBOUND_TRANSFER__{option}", "states")
    native = {"task_state_store": InMemoryStateStore()} if has_native else {}
    found = state_store(context_of(**native))
    if expected is None:
        assert isinstance(found, InMemoryStateStore)
    else:
        assert isinstance(found, MemoryRow)
        assert found._table.name == expected.format(home=single_machine)


def context_of(**native: Any) -> Any:
    ti = SimpleNamespace(
        dag_id="d", run_id="r", task_id="t", map_index=None, try_number=1, max_tries=0, id=uuid4(),
        task=SimpleNamespace(retries=0),
    )  # fmt: skip
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=utc_now()), **native}


def test_on_one_machine_a_delivery_remembers_without_any_setting(
    deliver: FakeTaskInstance, sandbox: Sandbox, single_machine: Path
) -> None:
    sent = deliver.run()["id"]
    assert again(deliver)["id"] == sent
    assert list(billed(sandbox)) == [sent]
    assert remembered(single_machine / LOCAL_FILE) == [("dag", "task", 2)]


@pytest.mark.usefixtures("several_machines")
def test_elsewhere_a_delivery_fails_before_anything_is_created(deliver: FakeTaskInstance, sandbox: Sandbox) -> None:
    deliver.retries = deliver.max_tries = 3
    tasks = [deliver, FakeTaskInstance(lambda: CreateTransferOperator(task_id="task", **DELIVERY), deliver.time)]
    for task in tasks:
        task.store = None  # type: ignore[assignment]
        with pytest.raises(AirflowFailException, match=r"so nothing was created: set state_conn_id in the section"):
            task.run()
        assert task.try_number == 1
    assert not sandbox.requests()


@pytest.mark.usefixtures("several_machines", "connection")
def test_elsewhere_a_sensor_fails_at_once(sandbox: Sandbox) -> None:
    context = context_of()
    with pytest.raises(AirflowFailException, match="a delivery or a wait needs a table"):
        TransferSensor(task_id="wait", transfer_id="t").get_or_create_deadline(context)


@pytest.mark.usefixtures("several_machines")
def test_a_table_that_is_missing_is_not_taken_for_one_that_is_not_needed() -> None:
    with pytest.raises(NoMemoryTable):
        state_store(context_of())


def test_a_database_that_is_down_is_named_before_anything_is_created(
    deliver: FakeTaskInstance, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": "secret", "schema": "d"}
    monkeypatch.setenv("AIRFLOW_CONN_STATES", json.dumps(down))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID", "states")
    with pytest.raises(MemoryUnavailable, match=r"connection 'states' fails with OperationalError"):
        deliver.run()
    assert not sandbox.requests()
