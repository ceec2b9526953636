"""One send for a key, always: several processes at once, and owners that are killed at each transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from resilience.delivery_keys.processes import DatabaseKill, DeliveringProcess
from support import memory
from support.deliveries import billed
from support.keyed_tasks import sqlite_connection

pytestmark = pytest.mark.slow

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

#: More than any delivery here has.
MAX_TRANSACTIONS = 60


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def keys(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database of the keys, by its connection."""
    if request.param == "sqlite":
        connection = sqlite_connection(tmp_path / "states.db")
    else:
        connection = request.getfixturevalue(request.param).airflow_connection
        connection = connection if isinstance(connection, str) else connection()
    memory.keep_keys_in(monkeypatch, connection)
    return str(request.param)


@pytest.fixture
def service(sandbox: Sandbox, keys: str, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A service whose rate limit many processes do not reach."""
    sandbox.patch_account(requests_per_window=100_000)
    monkeypatch.setenv(CONNECTION, sandbox.airflow_connection())
    return sandbox


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    return {"files": str(tmp_path / "*.csv")}


def check_sent_once(service: Sandbox, results: list[str | None]) -> None:
    (sent,) = billed(service)
    assert set(results) == {sent}
    assert len(service.transfer(sent)["files"]) == 2


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("takeovers", [0, 5], ids=["Airflow knows the owner", "owners are taken for dead"])
def test_processes_at_once_send_once(service: Sandbox, arguments: dict[str, Any], count: int, takeovers: int) -> None:
    runs = [f"run {number}" for number in range(count)]
    processes = [DeliveringProcess(run, arguments, others=runs, takeovers=takeovers) for run in runs]
    results = [process.result() for process in processes]

    check_sent_once(service, results)
    if not takeovers:
        assert [(call["method"], call["path"]) for call in service.requests()].count(("POST", "/v1/transfers")) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("keys", ["postgres"], indirect=True)
@pytest.mark.parametrize("is_committed", [False, True], ids=["before", "after"])
def test_an_owner_is_killed_at_each_transaction(
    service: Sandbox, arguments: dict[str, Any], is_committed: bool
) -> None:
    for number in range(1, MAX_TRANSACTIONS):
        values = {**arguments, "delivery_key": f"k{number}"}
        before = set(billed(service))
        killed = DeliveringProcess("one", values, kill=DatabaseKill(number, is_committed)).result()
        other = DeliveringProcess("two", values).result()
        sent = billed(service)
        assert set(sent) - before == {other}, number
        assert set(sent.values()) == {1}
        if killed is not None:
            assert killed == other
            assert number > 4, "a delivery has at least as many transactions"
            return
    pytest.fail("no delivery came to its end")
