"""What tests of deliveries share: tasks of any operator, as Airflow runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support.connections import connection_json
from support.tasks import FakeTaskInstance, SimulatedClock


@pytest.fixture
def task(connection: str, sandbox: Sandbox) -> Callable[..., FakeTaskInstance]:
    """Make a task instance of an operator class; its time is the sandbox's."""
    time = SimulatedClock(sandbox)

    def make(operator: type, task_id: str = "task", *, retries: int = 0, **arguments: Any) -> FakeTaskInstance:
        return FakeTaskInstance(lambda: operator(task_id=task_id, **arguments), time, retries, task_id=task_id)

    return make


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Sandbox]]:
    """Let the connection lead to another account, once this is called."""
    with running_sandbox() as other:

        def move() -> Sandbox:
            monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", connection_json(other))
            return other

        yield move
