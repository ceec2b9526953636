"""Waiting for a transfer's end: each case in every way to wait, with one outcome, one error and one XCom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, timezone
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
)
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from outbound_transfer import waiting
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.polling import poll
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.triggers import transfer as triggers
from outbound_transfer.triggers.transfer import TransferOutcomeTrigger, TransferTrigger
from support.tasks import Store

ANN, BOB = "ann@example.com", "bob@example.com"
WAYS = ["poke", "reschedule", "deferred", "deliver", "deliver deferred"]

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture(autouse=True)
def no_settling(monkeypatch) -> None:
    monkeypatch.setattr(poll, "SETTLE", 0.05)


@pytest.fixture
def report(tmp_path) -> str:
    path = tmp_path / "report.csv"
    path.write_bytes(b"a,b\n")
    return str(path)


@pytest.fixture
def sent(hook, report) -> str:
    """A transfer to two recipients."""
    return send(report, Store())["id"]


def send(report: str, store: Store, **arguments: Any) -> Any:
    operator = DeliverFilesOperator(
        task_id="deliver", subject="Report", recipients=[ANN, BOB], files=report, **arguments
    )
    return operator.execute(context_of(store))


def context_of(store: Store, max_tries: int = 0) -> Any:
    rescheduled = store.get("rescheduled")
    ti = SimpleNamespace(
        max_tries=max_tries,
        try_number=1,
        xcom_push=lambda *_: None,
        start_date=timezone.utcnow(),
        get_first_reschedule_date=lambda _: rescheduled and datetime.fromisoformat(rescheduled),
    )
    return {"ti": ti, "task_state_store": store}


@pytest.fixture(params=WAYS)
def wait(request, report) -> Callable[..., Any]:
    """``wait(**arguments)`` waits for ``wait.sent`` in one way to its end: the XCom, or the error raised."""
    store = Store()
    sent = send(report, store)["id"]
    is_delivery, is_deferred = request.param.startswith("deliver"), request.param.endswith("deferred")

    def make(**arguments: Any) -> Any:
        arguments = {"task_id": "wait", "deferrable": is_deferred, "poke_interval": 1.0, "timeout": 60.0} | arguments
        if is_delivery:  # what is kept of the earlier try makes it go on with the transfer that was sent
            return DeliverFilesOperator(subject="Report", recipients=[ANN, BOB], files=report, wait=True, **arguments)
        mode = "reschedule" if request.param == "reschedule" else "poke"
        return TransferSensor(transfer_id=sent, mode=mode, **arguments)

    def wait(**arguments: Any) -> Any:
        return to_the_end(lambda: make(**arguments), store)

    wait.sent = sent
    return wait


def to_the_end(make: Callable[[], Any], store: Store) -> Any:
    method, kwargs = "execute", {}
    while True:
        context = context_of(store)
        try:
            return getattr(make(), method)(context, **kwargs)
        except TaskDeferred as deferred:
            event = asyncio.run(asyncio.wait_for(first_event(deferred.trigger), 60))
            method, kwargs = deferred.method_name, {"event": event.payload}
        except AirflowRescheduleException as rescheduled:
            store.set("rescheduled", store.get("rescheduled") or timezone.utcnow().isoformat())
            pause = (rescheduled.reschedule_date - timezone.utcnow()).total_seconds()
            asyncio.run(asyncio.sleep(max(pause, 0)))


async def first_event(trigger: Any) -> Any:
    return await anext(trigger.run())


def test_all_have_collected(wait, sandbox) -> None:
    for recipient in (ANN, BOB):
        sandbox.pickup(wait.sent, recipient)
    final = wait()
    assert (final["id"], final["status"]) == (wait.sent, "complete")
    assert all(recipient["picked_up_at"] for recipient in final["recipients"])
    assert set(final) == {"id", "status", "subject", "message", "recipients", "expires_at", "sent_at"}


def test_one_is_enough_where_that_is_accepted(wait, sandbox) -> None:
    sandbox.pickup(wait.sent, BOB)
    assert wait(accept_partial=True)["status"] == "partial"


@pytest.mark.parametrize("choice", ["fail", "succeed", "skip"])
@pytest.mark.parametrize("end", ["expired", "canceled"])
def test_the_user_says_what_an_end_means(wait, sandbox, end, choice) -> None:
    if end == "canceled":
        sandbox.cancel(wait.sent)
    else:
        sandbox.advance_clock(40 * 86_400)
    arguments = {f"on_{end}": choice}
    if choice == "succeed":
        assert wait(**arguments)["status"] == end
    else:
        with pytest.raises({"fail": AirflowFailException, "skip": AirflowSkipException}[choice], match=f"is {end}"):
            wait(**arguments)


def test_it_is_given_up_at_the_deadline(wait) -> None:
    began = timezone.utcnow()
    with pytest.raises(AirflowSensorTimeout):
        wait(timeout=2.0)
    assert timezone.utcnow() - began >= timedelta(seconds=2)


def test_a_refused_key_fails_at_once(wait, sandbox) -> None:
    sandbox.revoke_key(sandbox.transfer_api_key)
    with pytest.raises(AirflowFailException, match="Check the API key"):
        wait()


def test_passing_failures_are_waited_out(wait, sandbox) -> None:
    for recipient in (ANN, BOB):
        sandbox.pickup(wait.sent, recipient)
    sandbox.plan_faults({"kind": "error", "status": 503}, {"kind": "reset"}, {"kind": "malformed_json"})
    assert wait()["status"] == "complete"
    assert [fault["state"] for fault in sandbox.faults()] == ["met"] * 3


def sensor(**arguments: Any) -> TransferSensor:
    return TransferSensor(**{"task_id": "wait", "transfer_id": "t", "deferrable": True, **arguments})


def trigger_of(operator: Any, context: Any) -> TransferTrigger:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    trigger = deferred.value.trigger
    assert isinstance(trigger, TransferTrigger)
    return trigger


def test_deferring_asks_the_service_nothing(sandbox) -> None:
    trigger_of(sensor(), context_of(Store()))
    assert sandbox.requests() == []


def test_the_deadline_survives_a_retry_and_begins_anew_with_a_clear() -> None:
    store = Store()
    first = trigger_of(sensor(timeout=100.0), context_of(store, max_tries=2))
    retried = trigger_of(sensor(timeout=100.0), context_of(store, max_tries=2))
    cleared = trigger_of(sensor(timeout=100.0), context_of(store, max_tries=3))
    assert first.deadline == retried.deadline < cleared.deadline


def test_poking_counts_from_the_first_try_too(sent) -> None:
    store = Store()
    trigger_of(sensor(timeout=3.0), context_of(store))
    began = timezone.utcnow()
    with pytest.raises(AirflowSensorTimeout):
        sensor(deferrable=False, transfer_id=sent, timeout=1_000.0, poke_interval=1.0).execute(context_of(store))
    assert timezone.utcnow() - began < timedelta(seconds=500)


def test_a_trigger_that_failed_is_no_end_of_the_wait() -> None:
    store = Store()
    before = trigger_of(sensor(), context_of(store))
    for _ in range(waiting.MOST_TRIGGER_FAILURES):
        with pytest.raises(TaskDeferred) as again:
            sensor().resume_execution("__fail__", {"error": "Trigger failure"}, context_of(store))
        assert again.value.trigger.deadline == before.deadline
    with pytest.raises(TaskDeferralError):
        sensor().resume_execution("__fail__", {"error": "Trigger failure"}, context_of(store))


@pytest.mark.parametrize(
    ("arguments", "finishes"),
    [
        ({}, True),
        ({"outlets": [Asset("delivered")]}, False),
        ({"on_success_callback": print}, False),
        ({"on_skipped_callback": print}, False),
        ({"multiple_outputs": True}, False),
        ({"on_failure_callback": print}, True),
    ],
)
def test_the_triggerer_ends_a_task_only_where_nothing_is_lost_by_it(arguments, finishes) -> None:
    assert trigger_of(sensor(finish_in_triggerer=True, **arguments), context_of(Store())).finish is finishes
    assert not trigger_of(sensor(**arguments), context_of(Store())).finish


@pytest.mark.parametrize(
    ("end", "choices", "event"),
    [
        ("complete", {}, TaskSuccessEvent),
        ("canceled", {"on_canceled": "skip"}, TaskSkippedEvent),
        ("canceled", {"on_canceled": "succeed"}, TaskSuccessEvent),
        ("canceled", {}, None),
    ],
)
def test_a_failure_takes_a_worker(sandbox, sent, monkeypatch, end, choices, event) -> None:
    pushed = []
    monkeypatch.setattr(triggers, "_push", lambda _, transfer: pushed.append(transfer["status"]))
    if end == "complete":
        for recipient in (ANN, BOB):
            sandbox.pickup(sent, recipient)
    else:
        sandbox.cancel(sent)
    trigger = trigger_of(
        sensor(transfer_id=sent, finish_in_triggerer=True, poke_interval=1, **choices), context_of(Store())
    )
    fired = asyncio.run(asyncio.wait_for(shared(trigger), 60))
    assert type(fired).__name__ == (event.__name__ if event else "TriggerEvent")
    assert pushed == ([end] if event is TaskSuccessEvent else [])


async def shared(trigger: Any) -> Any:
    """The trigger's event on the shared poll, as the triggerer runs it."""
    producer = type(trigger).create_shared_stream_producer(trigger.serialize()[1])

    async def stream() -> Any:
        async for news, _ in producer.open_stream():
            yield news

    return await anext(trigger.filter_shared_stream(stream()))


def test_triggers_of_one_connection_share_a_poll_and_survive_a_restart() -> None:
    one = trigger_of(sensor(), context_of(Store()))
    kind, kwargs = one.serialize()
    again = TransferTrigger(**kwargs)
    assert kind == "outbound_transfer.triggers.transfer.TransferTrigger"
    assert again.serialize() == one.serialize()
    watcher = TransferOutcomeTrigger()
    assert one.shared_stream_key() == again.shared_stream_key() == watcher.shared_stream_key()
    assert one.shared_stream_key() != TransferOutcomeTrigger(outbound_transfer_conn_id="other").shared_stream_key()
    assert TransferOutcomeTrigger(**watcher.serialize()[1]).serialize() == watcher.serialize()


class Watched:
    """An asset's state store."""

    def __init__(self, *, shared: bool = False) -> None:
        self.values: dict[str, Any] = {}
        self.shared = shared

    async def aget(self, key: str) -> Any:
        if self.shared:
            raise ValueError("Task has 2 concrete inlets and outlets")
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))


async def ends_told(store: Watched, count: int) -> list[str]:
    """So many ends, as a triggerer has them told: what is known is kept once each event is stored."""
    trigger = TransferOutcomeTrigger(poke_interval=1)
    trigger.asset_state_store = store  # type: ignore[assignment]
    producer = type(trigger).create_shared_stream_producer(trigger.serialize()[1])
    told: list[str] = []

    async def stream() -> Any:
        async for news, payload in producer.open_stream():
            yield news
            await producer.advance([AdvanceItem(payload, AdvanceOutcome(acked=1, failed=0))])

    async for event in trigger.filter_shared_stream(stream()):
        told += [f"{one['id']} {one['status']}" for one in event.payload["transfers"]]
        if (len(told) >= count and store.values) or store.shared:
            return told
    return told


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110  # what it waits for happens in another process, or in Airflow
        await asyncio.sleep(0.05)


def test_a_watcher_goes_on_where_it_was(sandbox, report) -> None:
    store = Watched()
    first, second = (send(report, Store())["id"] for _ in range(2))

    async def scene(ended: str) -> list[str]:
        telling = asyncio.ensure_future(ends_told(store, 1))
        await until(lambda: bool(store.values))
        if ended == first:
            sandbox.cancel(ended)
        return await asyncio.wait_for(telling, 60)

    assert asyncio.run(scene(first)) == [f"{first} canceled"]
    sandbox.cancel(second)  # while nobody watches
    told = asyncio.run(scene(second))
    assert f"{second} canceled" in told
    assert set(told) <= {f"{first} canceled", f"{second} canceled"}


def test_a_watcher_of_several_assets_watches_all_the_same(sandbox, sent) -> None:
    store = Watched(shared=True)

    async def scene() -> list[str]:
        telling = asyncio.ensure_future(ends_told(store, 1))
        await until(lambda: any(call["path"] == "/v1/transfers" for call in sandbox.requests()))
        await asyncio.sleep(1)
        sandbox.cancel(sent)
        return await asyncio.wait_for(telling, 60)

    assert asyncio.run(scene()) == [f"{sent} canceled"]


@pytest.mark.parametrize("wrong", [[], ["pending"], ["complete", "lost"]])
def test_a_watcher_tells_of_ends_only(wrong) -> None:
    with pytest.raises(ValueError, match="complete, expired, canceled"):
        TransferOutcomeTrigger(outcomes=wrong)
