"""A connection that did not work at first: once it is corrected, the task delivers.

Where it may have delivered before, the model says what it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.exceptions import CallError, InvalidSettings, SourceMissing
from outbound_transfer.operators.draft import CreateTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.airflow_names import AirflowFailException
from support.connections import connection_json
from support.deliveries import billed
from support.keyed_tasks import sqlite_connection
from support.tasks import FakeTaskInstance, SimulatedClock

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

#: What may be wrong with a connection.
MISTAKES = {
    "unknown key": {"password": "no-such-key"},
    "no key": {"password": ""},
    "no service": {"host": "https://127.0.0.1:1", "port": None},
}

#: What a user gives at first, and what is corrected with the connection.
INPUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a phone": ({"recipients": [{"email": "ann@example.com", "phone": "+15550100100"}]}, {}),
    "another subject": ({}, {"subject": "Corrected report"}),
    "another file": ({"files": ["missing.csv"]}, {"files": [{"name": "a.csv", "content": "a"}]}),
    "a delivery key": ({"delivery_key": "k"}, {"subject": "Other"}),
}

GIVEN = {"subject": "Report", "recipients": ["ann@example.com"], "files": [{"name": "a.csv", "content": "a"}]}

Use = Callable[..., None]


@pytest.fixture
def connect(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Let the connection lead to the service, with a mistake."""

    def connect(**mistake: Any) -> None:
        monkeypatch.setenv(CONNECTION, json.dumps(json.loads(connection_json(sandbox)) | mistake))

    return connect


@pytest.fixture
def fail(connect: Use) -> Use:
    def fail(ti: FakeTaskInstance, mistake: str) -> None:
        connect(**MISTAKES[mistake])
        with pytest.raises((AirflowFailException, CallError, SourceMissing, InvalidSettings)):
            ti.run()

    return fail


def task_of(sandbox: Sandbox, arguments: dict[str, Any], operator: type = DeliverFilesOperator) -> FakeTaskInstance:
    """Return a task, whose arguments may change between its tries."""
    return FakeTaskInstance(lambda: operator(task_id="task", **arguments), SimulatedClock(sandbox))


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_task_whose_connection_is_corrected_delivers(
    connect: Use, fail: Use, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str, given: str
) -> None:
    first, corrected = INPUTS[given]
    if given == "a delivery key":
        memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    ti = task_of(sandbox, arguments := {**GIVEN, **first})
    for _ in range(2):
        fail(ti, mistake)
        ti.clear()
    connect()
    arguments |= corrected

    assert [ti.run()["id"]] == list(billed(sandbox))


@pytest.mark.parametrize("given", [each for each in INPUTS if each != "a delivery key"])
def test_so_does_an_automatic_retry_and_the_only_index_of_a_mapped_task(
    connect: Use, fail: Use, sandbox: Sandbox, given: str
) -> None:
    first, corrected = INPUTS[given]
    ti = task_of(sandbox, arguments := {**GIVEN, **first})
    ti.map_index, ti.other_indexes = 0, 0
    fail(ti, "no key")
    ti.max_tries += 1
    connect()
    arguments |= corrected

    assert [ti.run()["id"]] == list(billed(sandbox))


def test_a_draft_that_is_made_by_a_task_of_its_own_is_created(connect: Use, fail: Use, sandbox: Sandbox) -> None:
    arguments = {name: value for name, value in GIVEN.items() if name != "files"}
    ti = task_of(sandbox, arguments, CreateTransferOperator)
    fail(ti, "unknown key")
    connect()
    arguments["subject"] = "Other"
    ti.clear()
    assert ti.run().startswith("tr_")
