"""A delivery key: one delivery, whatever run or task makes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.exceptions import DeliveryKeyInUse
from outbound_transfer.operators.draft import SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support import memory
from support.airflow_names import AirflowFailException
from support.deliveries import DELIVERY, billed
from support.keyed_tasks import KeyedTaskInstance, keyed_task, sqlite_connection
from support.tasks import SimulatedClock, again, without_credit


@pytest.fixture
def deliver(connection, sandbox, monkeypatch, tmp_path: Path) -> Callable[..., KeyedTaskInstance]:
    memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    (file := tmp_path / "report.csv").write_bytes(b"content")
    time, airflow = SimulatedClock(sandbox), dict[tuple[str, int], str]()
    return lambda run_id, **arguments: keyed_task(
        run_id, time, **{"airflow": airflow, "files": [str(file)], **arguments}
    )


def test_another_run_gets_the_transfer_that_was_sent_under_its_key(deliver, sandbox) -> None:
    sent = deliver("one").run()
    other = deliver("two")
    other.airflow["one", -1] = "running"  # it waits for pickup: a delivery that was sent is not waited for
    calls = len(sandbox.requests())
    assert other.run() == sent
    assert other.xcoms["transfer_id"] == sent["id"]
    assert list(billed(sandbox).values()) == [1]
    assert {call["method"] for call in sandbox.requests()[calls:]} <= {"GET"}
    index = deliver("three")
    index.map_index = 3
    assert index.run() == sent


def test_keys_are_deliveries_of_their_own_and_so_are_accounts(deliver, sandbox, elsewhere) -> None:
    assert deliver("one").run()["id"] != deliver("two", delivery_key="K").run()["id"]
    other = elsewhere()
    deliver("three").run()
    assert (len(billed(sandbox)), len(billed(other))) == (2, 1)


@pytest.mark.parametrize("changes", [{"subject": "Other"}, {"recipients": ["bob@example.com"]}, {"message": "Hi"}])
def test_another_delivery_under_a_key_that_was_delivered_is_refused(deliver, sandbox, changes) -> None:
    sent = deliver("one").run()["id"]
    with pytest.raises(AirflowFailException, match=f"'k'.*{sent}"):
        deliver("two", **changes).run()
    assert list(billed(sandbox)) == [sent]


@pytest.mark.parametrize("state", ["running", "queued", "deferred", "up_for_retry", "restarting", "scheduled"])
def test_while_its_owner_is_active_another_task_is_retried(deliver, sandbox, state: str) -> None:
    first = deliver("one")
    with without_credit(sandbox):
        first.run()
    second = deliver("two", retries=1)
    second.airflow["one", -1] = state
    with pytest.raises(DeliveryKeyInUse, match="run one.*'k'"):
        second.run_once()
    assert not billed(sandbox)
    second.airflow["one", -1] = "failed"
    sent = second.run()["id"]
    assert again(first)["id"] == sent
    assert list(billed(sandbox)) == [sent]


def test_another_users_connection_does_not_send_what_it_cannot_see(deliver, sandbox, monkeypatch) -> None:
    sent = deliver("one").run()["id"]
    monkeypatch.setattr(sandbox, "transfer_api_key", sandbox.new_key("other"))
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", sandbox.airflow_connection())
    with pytest.raises(AirflowFailException, match=f"{sent}.*another user.*with another delivery_key"):
        deliver("two").run()
    assert list(billed(sandbox)) == [sent]


@pytest.mark.parametrize("key", ["", "None", " k", "k ", "a\nb", "a\0", "\udce9", 7, ["k"]])
def test_an_invalid_key_is_refused_before_anything_is_created(deliver, sandbox, key: Any) -> None:
    with pytest.raises(AirflowFailException, match="delivery_key"):
        deliver("one", delivery_key=key, _airflow_from_mapped=True).run()
    assert not sandbox.requests()


@pytest.mark.parametrize("key", ["statements-2026-01-31", "x" * 2_000, "Straße 報告 {}?%s[a]"])
def test_other_texts_are_keys(deliver, key: str) -> None:
    sent = deliver("one", delivery_key=key).run()["id"]
    assert deliver("two", delivery_key=key).run()["id"] == sent


def test_keys_distinguish_deliveries_of_one_run_even_if_other_tasks_send_them(task, sandbox, files) -> None:
    for index in (0, 1):
        given = {"files": files, "delivery_key": f"k{index}", "send": False, **DELIVERY}
        deliver = task(DeliverFilesOperator, "deliver", **given)
        deliver.map_index = index
        send = task(SendTransferOperator, "send", transfer_id=deliver.run()["id"])
        send.map_index = index
        send.upstream = {"deliver": deliver}
        send.run()
    assert list(billed(sandbox).values()) == [1, 1]


def test_a_run_waits_for_pickup_of_the_transfer_sent_under_its_key(deliver, sandbox, recipients_pick_up) -> None:
    done = [deliver(run, wait=True, deferrable=True, poke_interval=1).run() for run in ("one", "two")]
    assert [one["status"] for one in done] == ["complete"] * 2
    assert len(billed(sandbox)) == 1
