"""What tests of deliveries share: tasks of any operator, as Airflow runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support.connections import connection_json
from support.mail_server import MailServer
from support.tasks import FakeTaskInstance, SimulatedClock, task_instance


@pytest.fixture
def task(connection: str, sandbox: Sandbox) -> Callable[..., FakeTaskInstance]:
    """Make a task instance of an operator class; its time is the sandbox's."""
    time = SimulatedClock(sandbox)

    return lambda operator, task_id="", **arguments: task_instance(operator, time, task_id=task_id, **arguments)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Sandbox]]:
    """Let the connection lead to another account, once this is called."""
    with running_sandbox() as other:

        def move() -> Sandbox:
            monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", connection_json(other))
            return other

        yield move


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """A mail server behind Airflow's default SMTP connection."""
    mail = MailServer()
    extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com"}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": mail.port, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    with mail.served():
        yield mail
