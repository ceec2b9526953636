"""Where a delivery is remembered: without any setting on one machine, in a named database elsewhere, or not begun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outbound_transfer.exceptions import DeliveriesUnavailable
from outbound_transfer.operators.draft import CreateTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.airflow_names import AirflowFailException
from support.deliveries import DELIVERY, billed
from support.keyed_tasks import sqlite_connection
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance


@pytest.fixture
def deliver(connection: str, sandbox: Sandbox, tmp_path: Path) -> FakeTaskInstance:
    (tmp_path / "a.csv").write_bytes(b"a,b\n")
    task = task_instance(DeliverFilesOperator, SimulatedClock(sandbox), files=str(tmp_path / "a.csv"), **DELIVERY)
    return memory.kept_in_a_database(task)


def test_on_one_machine_a_delivery_needs_no_setting(
    deliver: FakeTaskInstance, sandbox: Sandbox, single_machine: Path
) -> None:
    sent = deliver.run()["id"]
    assert again(deliver)["id"] == sent
    assert list(billed(sandbox)) == [sent]


@pytest.mark.usefixtures("several_machines")
def test_a_database_that_is_named_remembers_a_delivery(
    deliver: FakeTaskInstance, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    sent = deliver.run()["id"]
    assert again(deliver)["id"] == sent
    assert list(billed(sandbox)) == [sent]


@pytest.mark.usefixtures("several_machines")
def test_elsewhere_a_delivery_fails_before_anything_is_created(deliver: FakeTaskInstance, sandbox: Sandbox) -> None:
    deliver.retries = deliver.max_tries = 3
    create = memory.kept_in_a_database(task_instance(CreateTransferOperator, deliver.time, **DELIVERY))
    for task in (deliver, create):
        with pytest.raises(AirflowFailException, match=r"set \w+_conn_id in the section"):
            task.run()
        assert task.try_number == 1
    assert not sandbox.requests()


def test_a_database_that_is_down_is_named_before_anything_is_created(
    deliver: FakeTaskInstance, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": "secret", "schema": "d"}
    memory.keep_keys_in(monkeypatch, json.dumps(down))
    with pytest.raises(DeliveriesUnavailable, match=r"connection 'states'"):
        deliver.run()
    assert not sandbox.requests()
