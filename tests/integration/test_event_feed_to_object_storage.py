"""Draining the event feed into object storage: the operator in a task, and the commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.io import store

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.assets.outbound_transfer import LOADED_ALIAS, folder_asset
from outbound_transfer.lake.object_store import ObjectStore, open_store
from outbound_transfer.transfers.event_feed_to_object_storage import EventFeedToObjectStorageOperator
from support.object_folders import page_names, stored_rows
from support.object_storage import Bucket, connection_json, running_s3
from support.tasks import FakeTaskInstance, SimulatedClock

ACCOUNT = "127.0.0.1"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as address:
        yield address


@pytest.fixture(params=["file", "s3"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/outbound_transfer/events"
        return
    endpoint = request.getfixturevalue("s3")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection_json(endpoint))
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    bucket = Bucket(endpoint, f"feed-{tmp_path.name.lower().replace('_', '-')[-40:]}")
    yield f"s3://lake@{bucket.name}/outbound_transfer/events"
    bucket.close()


@pytest.fixture
def folder(path: str) -> ObjectStore:
    return open_store(path)


@pytest.fixture
def time(sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def task(connection, path: str, time: SimulatedClock) -> Callable[..., FakeTaskInstance]:
    def make(**arguments: Any) -> FakeTaskInstance:
        options = {"task_id": "load", "path": path, "account": "acme", "deferrable": True, **arguments}
        return FakeTaskInstance(lambda: EventFeedToObjectStorageOperator(**options), time)

    return make


@pytest.fixture
def command(path: str) -> Callable[..., None]:
    from airflow.cli import cli_parser

    def run(*words: str) -> None:
        arguments = cli_parser.get_parser().parse_args(["outbound-transfer", "feed", *words, "--path", path])
        arguments.func(arguments)

    return run


def loaded(folder: ObjectStore) -> list[str]:
    return [row["event_id"] for row in stored_rows(folder)]


def test_a_feed_of_three_pages_is_drained_without_a_worker_slot(task, sandbox, folder) -> None:
    sandbox.add_events(2_400, "transfer_sent")
    last = sandbox.add_events(100, "file_downloaded")
    ti = task()
    assert ti.run() == {
        "pages": 3,
        "events": 2_500,
        "new_events": 2_500,
        "rejected": 0,
        "cursor_from": 0,
        "cursor_to": last,
        "has_more": False,
        "types": {"transfer_sent": 2_400, "file_downloaded": 100},
    }
    assert (len(loaded(folder)), len(set(loaded(folder))), len(page_names(folder))) == (2_500, 2_500, 3)
    assert [call["status"] for call in sandbox.feed_calls()] == [200, 200, 200]
    assert ti.deferrals == 2


def test_the_next_run_goes_on_and_an_empty_one_loads_nothing(task, sandbox, folder, time) -> None:
    sandbox.add_events(3)
    task().run()
    time.sleep(61)
    assert task().run()["events"] == 0
    sandbox.add_events(2)
    time.sleep(61)
    assert (task().run()["cursor_from"], len(loaded(folder)), len(page_names(folder))) == (3, 5, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"path": "s3://bucket/../x"}, "path"), ({"account": "🎉" * 40}, "name")],
)
def test_invalid_arguments_fail_before_the_feed_is_read(task, sandbox, arguments, message) -> None:
    """Those of a mapped task, which are not checked when the DAG is parsed."""
    with pytest.raises(AirflowFailException, match=message):
        task(_airflow_from_mapped=True, **arguments).run()
    assert sandbox.feed_calls() == []


def test_a_run_with_events_emits_an_asset_event_for_the_folder(connection, sandbox, tmp_path: Path) -> None:
    emitted: list[Any] = []

    class Alias:
        def add(self, asset: Any, extra: Any) -> None:
            emitted.append((asset, extra["cursor_to"]))

    path = str(tmp_path / "events")
    sandbox.add_events(3)
    operator = EventFeedToObjectStorageOperator(task_id="load", path=path + "/")
    operator.execute({"outlet_events": {LOADED_ALIAS: Alias()}})
    assert emitted == [(folder_asset(path), 3)]


def test_the_folder_is_the_output_in_openlineage(connection, sandbox) -> None:
    operator = EventFeedToObjectStorageOperator(task_id="load", path="s3://lake@bucket/outbound_transfer/events")
    lineage = operator.get_openlineage_facets_on_complete(None)
    assert [each.name for each in lineage.inputs] == ["events"]
    assert [(each.namespace, each.name) for each in lineage.outputs] == [("s3://bucket", "outbound_transfer/events")]


# ----------------------------------------------------------------------------------------------------------- commands


def test_the_commands(task, sandbox, folder, command, capsys, time) -> None:
    sandbox.add_events(1_500)
    task().run()
    command("status", "--output", "json")
    (status,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [status[name] for name in ("account", "cursor", "events", "caught_up")] == ["acme", "1500", "1500", "True"]
    command("verify")
    assert "no problems" in capsys.readouterr().out
    command("reset", "--to", "1200", "--yes")
    assert "was 1500 and is 1000" in capsys.readouterr().out
    time.sleep(61)
    assert task().run()["events"] == 500
    time.sleep(61)
    assert task().run()["events"] == 0
    command("rebuild-cursor", "--yes")
    assert "was 1500 and is 1500" in capsys.readouterr().out
    first, last = page_names(folder)
    folder.delete(f"account=acme/{first}")
    with pytest.raises(SystemExit, match="the pages from the cursor 0 to 1000 are gone"):
        command("verify")
    folder.delete(f"account=acme/{last}")
    with pytest.raises(SystemExit, match="newest pages were there and are gone"):
        command("status")
    command("reset", "--to", "1500", "--yes")
    assert "was not valid and is 1500" in capsys.readouterr().out


def test_a_folder_without_a_feed_is_reported_and_stays_empty(connection, command, folder) -> None:
    with pytest.raises(SystemExit, match="No feed has been read here yet"):
        command("verify")
    with pytest.raises(SystemExit, match="no feed has been read here"):
        command("status", "--account", "nope")
    assert folder.list_names() == []


def test_every_argument_but_the_switch_is_a_template_field() -> None:
    operator = EventFeedToObjectStorageOperator(task_id="load", path="/tmp/events")
    assert set(operator.template_fields) == {
        "outbound_transfer_conn_id",
        "path",
        "account",
        "max_pages",
        "max_rejected",
    }
