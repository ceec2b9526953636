"""Fixtures for whoever tests DAGs against the sandbox. pytest loads this wherever the package is installed.

`transfer_sandbox`
    An empty service of its own for each test, in this process and on a free port: an
    `outbound_transfer_sandbox.testing.Sandbox`, with the control API as methods (`advance_clock`, `pickup`,
    `patch_account`, `plan_faults`, …), assertions on what was sent and billed (`assert_sent_once`, `assert_delivered`,
    …), and the connection `outbound_transfer_default` set for Airflow while the test runs.
`transfer_sandbox_session`
    The same, one for the whole session: for an Airflow that runs beside the tests. `reset()` empties it.

    def test_the_report_goes_out_once(transfer_sandbox):
        dag.test()
        transfer_sandbox.assert_delivered(transfer_sandbox.assert_sent_once(), {"a.csv": b"1,2"}, "ann@example.com")

Another connection id: `monkeypatch.setenv("AIRFLOW_CONN_FINANCE", transfer_sandbox.airflow_connection())`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import Sandbox

_CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"


@pytest.fixture
def transfer_sandbox() -> Iterator[Sandbox]:
    """An empty sandbox and Airflow's default connection to it, for this test."""
    with _connected() as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def transfer_sandbox_session() -> Iterator[Sandbox]:
    """One sandbox, and Airflow's default connection to it, for the session; `reset()` empties it."""
    with _connected() as sandbox:
        yield sandbox


@contextmanager
def _connected() -> Iterator[Sandbox]:
    from .testing import running_sandbox  # here, for it takes 0.3 s and most tests need none of it

    with running_sandbox() as sandbox, pytest.MonkeyPatch.context() as environment:
        environment.setenv(_CONNECTION, sandbox.airflow_connection())
        yield sandbox
