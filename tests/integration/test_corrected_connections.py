"""A connection that did not work at first: once it is corrected, the task delivers.

Where it may have delivered before, the model says what it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.operators.transfer import CreateTransferOperator, DeliverFilesOperator
from outbound_transfer.protocol.errors import CallError, InvalidSettings, SourceMissing
from outbound_transfer_sandbox.testing import Sandbox
from support.connections import connection_json
from support.deliveries import billed
from support.keyed_tasks import STATE_CONN_ID, sqlite_connection
from support.tasks import FakeTaskInstance, SimulatedClock

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"
FAILURES = (AirflowFailException, CallError, SourceMissing, InvalidSettings)

#: What may be wrong with a connection.
MISTAKES = {
    "unknown key": {"password": "no-such-key"},
    "no key": {"password": ""},
    "no service": {"host": "https://127.0.0.1:1", "port": None},
}


class Delivery:
    """A task, whose arguments a user changes between its tries."""

    def __init__(self, sandbox: Sandbox, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sandbox, self._monkeypatch = sandbox, monkeypatch
        self.arguments: dict[str, Any] = {"subject": "Report", "recipients": ["ann@example.com"], "files": [str(file)]}
        self.ti = FakeTaskInstance(self._make, SimulatedClock(sandbox))

    def _make(self) -> DeliverFilesOperator:
        return DeliverFilesOperator(task_id="task", **self.arguments)

    def connect(self, **mistake: Any) -> None:
        """Let the connection lead to the service, with a mistake."""
        connection = json.loads(connection_json(self.sandbox)) | mistake
        self._monkeypatch.setenv(CONNECTION, json.dumps(connection))

    def fail(self, **mistake: Any) -> None:
        self.connect(**mistake)
        with pytest.raises(FAILURES):
            self.ti.run()

    def clear(self, **changes: Any) -> Any:
        """Correct the connection, change the arguments, clear the task, and run it."""
        self.connect()
        self.arguments |= changes
        self.ti.clear()
        return self.ti.run()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.csv"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def delivery(connection: str, sandbox: Sandbox, file: Path, monkeypatch: pytest.MonkeyPatch) -> Delivery:
    return Delivery(sandbox, file, monkeypatch)


def with_a_phone(delivery: Delivery) -> dict[str, Any]:
    delivery.arguments["recipients"] = [{"email": "ann@example.com", "phone": "+15550100100"}]
    return {}


def with_another_subject(delivery: Delivery) -> dict[str, Any]:
    return {"subject": "Corrected report"}


def with_another_file(delivery: Delivery) -> dict[str, Any]:
    files = delivery.arguments["files"]
    delivery.arguments["files"] = ["missing.csv"]
    return {"files": files}


INPUTS = pytest.mark.parametrize("change", [with_a_phone, with_another_subject, with_another_file])


@INPUTS
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_task_whose_connection_is_corrected_delivers(
    delivery: Delivery, mistake: str, change: Callable[[Delivery], dict[str, Any]]
) -> None:
    changes = change(delivery)
    for _ in range(2):
        delivery.fail(**MISTAKES[mistake])
        delivery.ti.clear()

    assert [delivery.clear(**changes)["id"]] == list(billed(delivery.sandbox))


@INPUTS
def test_so_does_an_automatic_retry_and_the_only_index_of_a_mapped_task(delivery: Delivery, change: Any) -> None:
    changes = change(delivery)
    delivery.ti.map_index, delivery.ti.other_indexes = 0, 0
    delivery.fail(**MISTAKES["no key"])
    delivery.ti.max_tries += 1
    delivery.connect()
    delivery.arguments |= changes
    assert [delivery.ti.run()["id"]] == list(billed(delivery.sandbox))


def test_a_delivery_key_is_not_lost_to_a_wrong_connection(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STATES", sqlite_connection(tmp_path / "states.db"))
    monkeypatch.setenv(STATE_CONN_ID, "states")
    delivery.arguments["delivery_key"] = "k"
    for mistake in MISTAKES.values():
        delivery.fail(**mistake)
        delivery.ti.clear()
    assert [delivery.clear(subject="Other")["id"]] == list(billed(delivery.sandbox))


def test_a_draft_that_is_made_by_a_task_of_its_own_is_created(connection, sandbox, monkeypatch) -> None:
    delivery = Delivery(sandbox, Path("unused"), monkeypatch)
    del delivery.arguments["files"]
    monkeypatch.setattr(delivery.ti, "make", lambda: CreateTransferOperator(task_id="task", **delivery.arguments))
    delivery.fail(**MISTAKES["unknown key"])
    assert delivery.clear(subject="Other").startswith("tr_")


@pytest.mark.parametrize("others", [{"map_index": 0, "other_indexes": 1}, {"other_tasks": 1}])
def test_what_another_index_or_an_old_name_of_the_task_may_have_sent_is_not_assumed_unsent(
    delivery: Delivery, others: dict[str, int]
) -> None:
    for name, value in others.items():
        setattr(delivery.ti, name, value)
    delivery.fail(**MISTAKES["no key"])
    with pytest.raises(AirflowFailException, match="cannot be listed now"):
        delivery.clear(subject="Other")
    assert not billed(delivery.sandbox)
