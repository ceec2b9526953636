"""An account's name stands for one site address, wherever events land; an event of a known id is that event."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from outbound_transfer.cli.console import main
from outbound_transfer.operators.base import OutboundTransferOperator
from outbound_transfer.transfers.event_feed_to_iceberg import EventFeedToIcebergOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from outbound_transfer_sandbox.testing import Sandbox
from support import iceberg
from support.airflow_names import AirflowFailException
from support.tasks import FakeTaskInstance, SimulatedClock
from support.warehouses import sqlite_hook


@dataclass
class Destination:
    """Where an operator loads to; ``forget`` does what the error says that frees the account's name.

    :ivar options: the command line's, if it has a feed.
    """

    make: Callable[..., OutboundTransferOperator]
    forget: Callable[[], Any]
    options: tuple[str, ...] = ()


@pytest.fixture(params=["sql", "iceberg", "transfers"])
def destination(request, tmp_path, monkeypatch) -> Destination:
    if request.param == "iceberg":
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", iceberg.connection_json(tmp_path))

        lake = iceberg.open_lake(tmp_path)

        def remove_property() -> None:
            with lake.table().transaction() as transaction:
                transaction.remove_properties("outbound-transfer.address.acme")

        make = partial(EventFeedToIcebergOperator, iceberg_conn_id="lake", table=iceberg.TABLE)
        return Destination(make, remove_property, ("--iceberg-conn-id", "lake", "--table", iceberg.TABLE))
    file = tmp_path / "warehouse.db"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(file)}))
    delete = "DELETE FROM outbound_transfer_accounts WHERE account = 'acme'"
    operator = EventFeedToSqlOperator if request.param == "sql" else TransfersToSqlOperator
    options = ("--sql-conn-id", "warehouse") if request.param == "sql" else ()
    return Destination(partial(operator, sql_conn_id="warehouse"), lambda: sqlite_hook(file).run(delete), options)


@pytest.fixture
def run(destination, connection, sandbox, monkeypatch) -> Callable[..., Any]:
    moved = json.loads(sandbox.airflow_connection())
    moved["host"] = moved["host"].replace("127.0.0.1", "localhost")
    monkeypatch.setenv("AIRFLOW_CONN_MOVED", json.dumps(moved))
    sandbox.patch_account(feed_interval_seconds=0)
    time = SimulatedClock(sandbox)

    def run(account: str | None, conn_id: str = connection) -> Any:
        given = {"task_id": "load", "account": account, "outbound_transfer_conn_id": conn_id}
        return FakeTaskInstance(lambda: destination.make(**given), time).run()

    return run


@pytest.fixture
def command(destination) -> Callable[..., None]:
    return lambda *words: main(["feed", *words, *destination.options])


def feed_calls(sandbox: Sandbox) -> int:
    return sum(call["path"].startswith("/v1/") for call in sandbox.requests())


def test_a_name_stands_for_the_account_that_it_was_first_used_with(run, sandbox) -> None:
    sandbox.add_events(2)
    run("acme")
    run(None)
    made = feed_calls(sandbox)
    error = r"'acme' is bound to the account 127\.0\.0\.1:\d+ here, but the "
    with pytest.raises(AirflowFailException, match=error):
        run("acme", "moved")
    with pytest.raises(AirflowFailException, match="is bound to the account"):
        run(sandbox.base_url.removeprefix("http://"), "moved")
    assert feed_calls(sandbox) == made, "nothing was read"
    run("other", "moved")
    run("acme")


def test_a_moved_account_can_use_its_name_again_once_the_old_binding_is_removed(run, destination, sandbox) -> None:
    sandbox.add_events(2)
    run("acme")
    destination.forget()
    run("acme", "moved")
    with pytest.raises(AirflowFailException, match="delete|remove"):
        run("acme")


@pytest.mark.parametrize("destination", ["sql", "iceberg"], indirect=True)
def test_the_commands_say_which_account_it_is(run, command, sandbox, monkeypatch, capsys) -> None:
    sandbox.add_events(2)
    run("acme")
    address = sandbox.base_url.removeprefix("http://")
    command("verify")
    assert f"OK: no problems found in the feed of acme ({address})" in capsys.readouterr().out
    command("status", "--output", "json")
    assert json.loads(capsys.readouterr().out)[0]["address"] == address
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "y")
    command("reset", "--to", "0")
    assert asked == [f"Set the cursor of acme ({address}) from 2 to 0? [y/N] "]
    with pytest.raises(AirflowFailException, match="is bound to the account"):
        run("acme", "moved")
    assert run("acme")["events"] == 2
