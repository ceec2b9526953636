"""Fixtures for tests of Dags against the sandbox. pytest loads this plugin if the package is installed.

`transfer_sandbox` is an empty sandbox for each test, in this process and on a free port. It is a `testing.Sandbox`: it
has the control API as methods (`advance_clock`, `pickup`, `patch_account`, `plan_faults`, …) and assertions about what
was sent and billed (`assert_sent_once`, `assert_delivered`, …). While the test runs, Airflow's connection
`outbound_transfer_default` points to it.

`answer_requests` answers in a person's place when tasks of `dag.test()` ask in Airflow: `answer_requests("Approve")`
or `"Reject"`.

`transfer_sandbox_session` is one sandbox for the whole session, for an Airflow that runs beside the tests. `reset()`
empties it.

An example:

    def test_the_report_goes_out_once(transfer_sandbox):
        dag.test()
        transfer_sandbox.assert_delivered(transfer_sandbox.assert_sent_once(), {"a.csv": b"1,2"}, "ann@example.com")

For another connection id: `monkeypatch.setenv("AIRFLOW_CONN_FINANCE", transfer_sandbox.airflow_connection())`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from . import explain_missing_packages

if TYPE_CHECKING:
    from .testing import Sandbox

_CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"


@pytest.fixture
def transfer_sandbox() -> Iterator[Sandbox]:
    """Run an empty sandbox, and set Airflow's default connection to it, for this test."""
    with _connected() as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def transfer_sandbox_session() -> Iterator[Sandbox]:
    """Run one sandbox, and set Airflow's default connection to it, for the session. `reset()` empties it."""
    with _connected() as sandbox:
        yield sandbox


@pytest.fixture
def answer_requests(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Answer each request for input that a task of `dag.test()` makes from now on.

    The argument is the beginning of the option to choose. Without an answer, the task waits for its `response_timeout`.
    """
    # Looked up by name, as the sandbox itself does without Airflow.
    operators: Any = import_module("airflow.providers.standard.operators.hitl")
    models: Any = import_module("airflow.models.hitl")
    sessions: Any = import_module("airflow.utils.session")
    request = operators.upsert_hitl_detail

    def answer(choice: str) -> None:
        def request_and_answer(**given: Any) -> None:
            request(**given)
            with sessions.create_session() as session:
                for made in session.query(models.HITLDetail).filter(models.HITLDetail.responded_at.is_(None)):
                    made.chosen_options = [next(option for option in made.options if option.startswith(choice))]
                    made.responded_by, made.responded_at = {"id": "test", "name": "test"}, datetime.now(UTC)

        monkeypatch.setattr(operators, "upsert_hitl_detail", request_and_answer)

    return answer


@contextmanager
def _connected() -> Iterator[Sandbox]:
    if problem := explain_missing_packages():
        pytest.fail(problem, pytrace=False)
    from .testing import running_sandbox  # imported here: it takes 0.3 s, and most tests do not need it

    with running_sandbox() as sandbox, pytest.MonkeyPatch.context() as environment:
        environment.setenv(_CONNECTION, sandbox.airflow_connection())
        yield sandbox
