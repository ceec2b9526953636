"""What tests of deliveries share: tasks of any operator, as Airflow runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support.deliveries import DELIVERY
from support.mail_server import MailServer
from support.tasks import FakeTaskInstance, SimulatedClock, task_instance
from support.waiting_tasks import Scene


@pytest.fixture
def task(connection: str, sandbox: Sandbox) -> Callable[..., FakeTaskInstance]:
    """Make a task instance of an operator class; its time is the sandbox's."""
    time = SimulatedClock(sandbox)

    return lambda operator, task_id="", **arguments: task_instance(operator, time, task_id=task_id, **arguments)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return [str(path) for path in paths]


@pytest.fixture
def deliver(task: Callable[..., FakeTaskInstance], files: list[str]) -> Callable[..., FakeTaskInstance]:
    return lambda **arguments: task(DeliverFilesOperator, **{"files": files, **DELIVERY, **arguments})


@pytest.fixture
def make_draft(task: Callable[..., FakeTaskInstance], files: list[str]) -> Callable[[], str]:
    def make() -> str:
        draft = str(task(CreateTransferOperator, **DELIVERY).run())
        task(AttachFilesOperator, transfer_id=draft, files=files).run()
        return draft

    return make


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Sandbox]]:
    """Let the connection lead to another account, once this is called."""
    with running_sandbox() as other:

        def move() -> Sandbox:
            monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", other.airflow_connection())
            return other

        yield move


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    mail = MailServer()
    extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com"}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": mail.port, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    with mail.served():
        yield mail


@pytest.fixture
def scene(sandbox: Sandbox, connection: str) -> Iterator[Scene]:
    """Deferred tasks and their service, in virtual time."""
    scene = Scene(sandbox)
    with scene.time.running():
        yield scene
