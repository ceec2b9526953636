"""The whole operator into a real Iceberg table, through Airflow's connection, and the commands for it."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.cli import cli_parser
from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook

from outbound_transfer.airflow_compat.names import AirflowFailException, redact
from outbound_transfer.lake.catalog import open_catalog
from outbound_transfer.store.errors import NotAnIcebergConnection
from outbound_transfer.transfers.event_feed_to_iceberg import EventFeedToIcebergOperator
from support.iceberg import TABLE, Lake, connection_json, open_lake, properties
from support.object_storage import ACCESS_KEY, SECRET_KEY, Bucket, running_s3
from support.tasks import FakeTaskInstance


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection_json(tmp_path))
    return open_lake(tmp_path)


@pytest.fixture
def load(task, lake) -> Callable[..., FakeTaskInstance]:
    options = {"iceberg_conn_id": "lake", "table": TABLE, "deferrable": True, "account": "acme"}
    return lambda: task(EventFeedToIcebergOperator, "load", **options)


def test_a_feed_of_two_pages_is_drained_without_a_worker_slot(load, sandbox, lake) -> None:
    sandbox.add_events(1_000, "transfer_sent")
    last = sandbox.add_events(100, "file_downloaded")
    ti = load()
    result = ti.run()
    assert (result["pages"], result["new_events"], result["cursor_to"]) == (2, 1_100, last)
    assert result["types"] == {"transfer_sent": 1_000, "file_downloaded": 100}
    assert ti.deferrals == 1
    assert [call["status"] for call in sandbox.feed_calls()] == [200, 200]
    assert 0 < max(ti.time.waits) <= 61, "what is left of a minute"
    assert len(set(lake.ids())) == len(lake.ids()) == 1_100
    assert load().run()["events"] == 0


def test_a_run_with_events_emits_an_event_for_the_tables_asset(connection, sandbox, lake) -> None:
    sandbox.add_events(2)
    outlets = defaultdict(Mock)
    EventFeedToIcebergOperator(task_id="load", iceberg_conn_id="lake", table=TABLE).execute({"outlet_events": outlets})
    ((told,),) = (alias.add.call_args_list for alias in outlets.values())
    assert (told.args[0].uri, told.kwargs["extra"]["cursor_to"]) == ("x-outbound-transfer://lake/lake.events", 2)


@pytest.mark.parametrize("conn_type", ["outbound_transfer", "sqlite"])
def test_a_connection_of_another_type_is_an_error_in_words(load, sandbox, monkeypatch, conn_type: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": conn_type, "host": "localhost"}))
    with pytest.raises(AirflowFailException, match="'lake' does not have the type iceberg"):
        load().run()
    assert sandbox.feed_calls() == []


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch, lake) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyiceberg_core", None)
        with pytest.raises(NotAnIcebergConnection, match=r"outbound-transfer\[iceberg\]"):
            open_catalog("lake")
    monkeypatch.delattr(IcebergHook, "catalog")
    with pytest.raises(NotAnIcebergConnection, match=r"install 2\.0 or newer"):
        open_catalog("lake")


SECRET = "s3cr3t-token-value"


@pytest.mark.parametrize(
    "connection",
    [
        {"extra": {"token": f"{SECRET}\n"}},
        {"extra": {"header.Authorization": f"Bearer {SECRET}\n"}},
        {"extra": {"auth": {"type": "custom", "impl": f"x.{SECRET}", "custom": {"password": SECRET}}}},
        {"host": f"http://127.0.0.1:9/x?api_key={SECRET}"},
        {"extra": {"type": "none", "adls.connection_string": f"{SECRET} ok"}},
        {"extra": {"type": "none", "s3.proxy-uri": f"http://ann:{SECRET}/x@localhost:1"}},
        {"extra": {"type": "none", "more": [{"Credentials": {"number": SECRET}}]}},
    ],
)
def test_a_secret_of_a_connection_is_masked_wherever_it_is(monkeypatch, connection: dict[str, Any]) -> None:
    value = {"conn_type": "iceberg", "host": "http://127.0.0.1:9", **connection}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(value))
    with pytest.raises(Exception, match=r".") as error:  # of whatever kind
        open_catalog("lake")
    assert SECRET not in redact("".join(traceback.format_exception(error.value)))
    assert SECRET not in redact(f"refused: {SECRET}")
    innocent = "refused: http://localhost:1/token, type sql"
    assert redact(innocent) == innocent


def test_a_table_in_a_bucket(connection, sandbox, tmp_path, monkeypatch) -> None:
    with running_s3() as endpoint:
        Bucket(endpoint, "lake").close()
        login = {"s3.region": "us-east-1", "s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
        extra = properties(tmp_path) | {"warehouse": "s3://lake/warehouse", "s3.endpoint": endpoint} | login
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", "extra": extra}))
        catalog = open_catalog("lake")
        catalog.create_namespace("lake")
        sandbox.add_events(5)
        operator = EventFeedToIcebergOperator(task_id="load", iceberg_conn_id="lake", table=TABLE)
        assert operator.execute({})["new_events"] == 5
        rows = catalog.load_table(TABLE).scan().to_arrow()
    assert rows.num_rows == len(set(rows["event_id"].to_pylist())) == 5


@pytest.fixture
def command(connection, sandbox, lake) -> Callable[..., None]:
    sandbox.add_events(3)
    EventFeedToIcebergOperator(task_id="load", iceberg_conn_id="lake", table=TABLE, account="acme").execute({})

    def run(*words: str, where: tuple[str, ...] = ("--iceberg-conn-id", "lake", "--table", TABLE)) -> None:
        arguments = cli_parser.get_parser().parse_args(["outbound-transfer", "feed", *words, *where])
        arguments.func(arguments)

    return run


def test_the_commands_inspect_and_repair_the_table(command, lake, capsys) -> None:
    command("status")
    out = capsys.readouterr().out
    assert re.search(r"cursor +\| 3\b", out)
    assert re.search(r"events +\| 3\b", out)
    command("verify")
    assert "OK: no problems found" in capsys.readouterr().out
    command("reset", "--to", "1", "--yes")
    out = capsys.readouterr().out
    assert "was 3 and is 0" in out
    assert "The page with 1 starts at 0: its rows are deleted and read again." in out
    assert lake.ids() == []
    command("rebuild-cursor", "--yes")
    assert "was 0 and is 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ((), "Give exactly one of --sql-conn-id.* --iceberg-conn-id"),
        (("--sql-conn-id", "a", "--iceberg-conn-id", "b", "--table", TABLE), "Give exactly one of"),
        (("--iceberg-conn-id", "lake"), "needs --table"),
        (("--iceberg-conn-id", "lake", "--table", "lake.none"), "No feed has been read here yet"),
        (("--iceberg-conn-id", "lake", "--table", TABLE, "--account", "nope"), "no feed nope; it has: acme"),
    ],
)
def test_a_command_says_what_it_needs(command, where: tuple[str, ...], error: str) -> None:
    with pytest.raises(SystemExit, match=error):
        command("status", where=where)
