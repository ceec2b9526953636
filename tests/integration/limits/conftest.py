"""Deliveries whose time is the sandbox's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.domain.clock import Clock
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import timezone
from support.deliveries import DELIVERY
from support.tasks import FakeTaskInstance, SimulatedClock, task_instance


@pytest.fixture
def time(sandbox: Sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def deliver(connection: str, time: SimulatedClock) -> Callable[..., FakeTaskInstance]:
    """Make a delivery of files; its time is the sandbox's."""

    def make(*files: Any, retries: int = 0, **arguments: Any) -> FakeTaskInstance:
        return task_instance(DeliverFilesOperator, time, retries=retries, files=list(files), **DELIVERY | arguments)

    return make


@pytest.fixture
def stored(sandbox: Sandbox) -> Callable[[str], dict[str, str]]:
    """SHA-256 by name of what a transfer holds, read beside the API: its rate limit is the test's."""

    def of(transfer_id: str) -> dict[str, str]:
        files = sandbox.transfer(transfer_id)["files"]
        return {file["name"]: sandbox.stored_file(transfer_id, file["id"])["sha256"] for file in files}

    return of


@pytest.fixture
def no_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real time stands still for the service and for deferrals, so that the machine's speed plays no part."""
    monkeypatch.setattr(Clock, "now", lambda clock: clock.offset)
    now = timezone.utcnow()
    monkeypatch.setattr(timezone, "utcnow", lambda: now)
