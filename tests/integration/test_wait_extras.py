"""A deferred wait that ends without a worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent

from outbound_transfer_sandbox.testing import Sandbox
from support.transfers import pick_up
from support.triggers import first_shared_event
from support.waiting_tasks import Scene, trigger_of

DAYS = timedelta(days=1)


@pytest.fixture
def scene(sandbox: Sandbox, connection: str) -> Iterator[Scene]:
    scene = Scene(sandbox)
    with scene.time.running():
        yield scene


# ---------------------------------------------------------------------------------------------------- without a worker

TI = SimpleNamespace(id="1", dag_id="dag", run_id="run", task_id="wait", map_index=-1, try_number=1, context_carrier={})


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
def test_the_triggerer_finishes_a_task_only_if_nothing_is_lost(
    connection: str, arguments: dict[str, Any], finishes: bool
) -> None:
    assert trigger_of(end_from_trigger=True, **arguments).end_from_trigger is finishes
    assert not trigger_of(**arguments).end_from_trigger


@pytest.mark.parametrize(
    ("end", "choices", "event"),
    [
        ("complete", {}, TaskSuccessEvent),
        ("canceled", {"on_canceled": "skip"}, TaskSkippedEvent),
        ("canceled", {"on_canceled": "succeed"}, TaskSuccessEvent),
        ("canceled", {}, None),
    ],
)
def test_a_failure_takes_a_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, end: str, choices: dict[str, Any], event: Any
) -> None:
    pushed: list[tuple[str, Any]] = []
    monkeypatch.setattr(XCom, "set", lambda key, value, **_: pushed.append((key, value["status"])))
    assert kind_of_event(scene, end, **choices) == (event.__name__ if event else "TriggerEvent")
    keys = {TaskSuccessEvent: ["return_value"], TaskSkippedEvent: ["outcome"], None: []}
    assert pushed == [(key, end) for key in keys[event]]


def test_a_result_that_the_triggerer_cannot_store_takes_a_worker(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def push(*_: Any, **__: Any) -> None:
        threads.append(threading.current_thread())
        raise OSError("down")

    monkeypatch.setattr(XCom, "set", push)
    assert kind_of_event(scene, "complete") == "TriggerEvent"
    assert threads
    assert threading.main_thread() not in threads, "the event loop's thread must not wait for Airflow"


def kind_of_event(scene: Scene, end: str, **choices: Any) -> str:
    (sent,) = scene.send()
    if end == "complete":
        pick_up(scene.sandbox, sent)
    else:
        scene.sandbox.cancel(sent)
    trigger = trigger_of(transfer_id=sent, end_from_trigger=True, poke_interval=10, **choices)
    return type(scene.time.run(first_shared_event(trigger, ti=TI))).__name__
