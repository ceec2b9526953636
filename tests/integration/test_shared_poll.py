"""All deferred waits of a connection share one poll: what it costs, what ends a wait, and what holds up none.

The tasks are sensors in a triggerer's own runner, against the sandbox, in virtual time that it shares with them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from support import transfers
from support.airflow_names import BaseHook, TaskDeferred
from support.transfers import pick_up
from support.triggers import PAUSE, Triggerer
from support.waiting_tasks import Scene, WaitingTask

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

#: Seconds within which a poll, and the runner of triggers, do what is due.
SOON = 10.0 + PAUSE

COMPLETE = ("", "complete")


def outcomes(tasks: list[WaitingTask]) -> set[tuple[str, Any]]:
    return {task.outcome for task in tasks}


def all_picked_up(
    scene: Scene, count: int, at: float, first: Callable[[], Any] = lambda: None, **arguments: Any
) -> list[WaitingTask]:
    """Play so many waits, whose transfers are picked up then; each must end so. Before, ``first`` happens."""
    sent = scene.send(count)
    tasks = [scene.wait(one, **arguments) for one in sent]
    first()
    scene.time.after(at, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
    return tasks


def deferred(task: WaitingTask) -> TaskDeferred:
    task.begin_try()
    with pytest.raises(TaskDeferred) as raised:
        task.go_on()
    return raised.value


def lasted(task: WaitingTask) -> float:
    assert task.ended is not None
    return task.ended - task.began


def test_waits_of_a_connection_share_the_calls(scene) -> None:
    tasks = all_picked_up(scene, 150, 1_200)
    # Two pages show all. Alone, each wait would make 20 calls.
    assert len(scene.polls()) <= 6 * (1_200 / 60) + 30
    assert max(map(lasted, tasks)) <= 1_200 + 2 * 60 + 60 + SOON


def test_polls_leave_most_of_a_keys_calls_to_deliveries(scene) -> None:
    """No listing shows a draft, so each of these waits takes a call of its own."""
    drafts = transfers.create(scene.sandbox, 100)
    scene.calls_before = len(scene.sandbox.requests())
    tasks = [scene.wait(one, timeout=1_200.0) for one in drafts]
    scene.play(*tasks)
    assert outcomes(tasks) == {("AirflowSensorTimeout", "draft")}
    assert "is draft" in str(tasks[0].error)
    assert "it was never sent, so nobody can pick it up" in str(tasks[0].error)
    assert {call["status"] for call in scene.polls()} == {200}
    assert len(scene.polls()) <= 30 * (scene.time.now / 60) + 60


def test_polls_that_fail_halfway_leave_most_of_a_keys_calls_to_deliveries(scene) -> None:
    tasks = [scene.wait(one, timeout=1_200.0) for one in transfers.create(scene.sandbox, 100)]
    limited, before = httpx.Response(429, headers={"Retry-After": "700"}), len(scene.time.asked)
    scene.time.on_call = lambda _: None if len(scene.time.asked) % 20 else limited
    scene.play(*tasks)
    assert len(scene.time.asked) - before <= 30 * (scene.time.now / 60) + 60


@pytest.mark.parametrize("leave", [False, True])
def test_waits_that_follow_one_another_leave_most_of_a_keys_calls_to_deliveries(scene, leave) -> None:
    """Tasks for transfers of long ago end at their first poll, or are cleared during it; and the next ones begin."""
    sent = scene.send(25)
    [scene.sandbox.cancel(one) for one in sent]
    scene.time.on_call = lambda _: time.sleep(leave)

    async def story() -> None:
        for _ in range(8):
            until = (lambda since=scene.time.now: any(at > since for at, _ in scene.time.asked)) if leave else None
            await scene.follow(*map(scene.wait, sent), until=until)

    scene.time.run(story())
    assert leave or outcomes(scene.tasks) == {("AirflowFailException", "canceled")}
    assert len(scene.polls()) <= 30 * (scene.time.now / 60) + 10


def test_a_call_that_never_ends_holds_up_waits_for_an_hour(scene) -> None:
    end = threading.Event()

    def hang(_: httpx.Request) -> None:
        scene.time.on_call = lambda _: None
        end.wait()

    (task,) = all_picked_up(scene, 1, 30, lambda: setattr(scene.time, "on_call", hang))
    end.set()
    assert 3_600 <= lasted(task) <= 3_600 + 60 + SOON


def test_a_last_poll_that_fails_is_repeated(scene) -> None:
    def fail(_: httpx.Request) -> httpx.Response | None:
        return httpx.Response(503) if 695 < scene.time.now < 720 else None

    all_picked_up(scene, 1, 650, lambda: setattr(scene.time, "on_call", fail), interval=600.0, timeout=700.0)


def test_the_rest_after_many_calls_leaves_time_for_a_last_poll(scene) -> None:
    def answer(request: httpx.Request) -> httpx.Response | None:
        is_endless = request.url.params.get("status") == "pending"
        return httpx.Response(200, json={"data": [], "next_cursor": "0"}) if is_endless else None

    all_picked_up(scene, 56, 5, lambda: setattr(scene.time, "on_call", answer), timeout=10.0)


def test_a_deadline_ends_a_wait_though_no_poll_ever_succeeds(scene) -> None:
    task = scene.wait(scene.send()[0], timeout=300.0)
    scene.time.on_call = lambda _: httpx.Response(503)
    scene.play(task)
    assert task.outcome == ("AirflowSensorTimeout", None)
    assert 300 <= lasted(task) <= 300 + 240 + SOON


def test_a_clock_that_is_set_back_brings_no_deadline_forward(scene) -> None:
    task = scene.wait(scene.send()[0], timeout=900.0)
    scene.time.after(300, lambda: scene.time.set_calendar(-600.0))
    scene.play(task)
    assert task.outcome[0] == "AirflowSensorTimeout"
    assert lasted(task) >= 900 + 600


def test_a_clock_that_is_set_forward_brings_a_deadline_forward_though_no_poll_ever_succeeds(scene) -> None:
    scene.time.set_calendar(-3_600.0)
    task = scene.wait(scene.send()[0], timeout=900.0)
    scene.time.on_call = lambda _: httpx.Response(503)
    scene.time.after(300, lambda: scene.time.set_calendar(0.0))
    scene.play(task)
    assert task.outcome == ("AirflowSensorTimeout", None)
    assert 300 <= lasted(task) <= 300 + 360 + SOON


def test_a_deadline_that_has_passed_while_no_triggerer_ran_is_followed_by_a_poll(scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, timeout=300.0)
    deferral = deferred(task)
    time.sleep(3_600)
    pick_up(scene.sandbox, sent)
    # The first call of the last poll fails, too.
    scene.sandbox.plan_faults({"kind": "error", "status": 503})
    task.fired(deferral, scene.time.run(Triggerer().first_event(deferral.trigger)))
    assert task.go_on()["status"] == "complete"


def test_a_transfer_that_the_key_does_not_see_ends_its_own_wait_alone(scene) -> None:
    (sent,) = scene.send()
    seen, unseen, nonsense = scene.wait(sent), scene.wait("none"), scene.wait("../keys")
    scene.time.after(200, lambda: pick_up(scene.sandbox, sent))
    scene.play(seen, unseen, nonsense)
    assert seen.outcome == COMPLETE
    assert unseen.outcome == nonsense.outcome == ("AirflowFailException", None)
    assert "id is unknown" in str(unseen.error)


def test_an_error_of_airflow_ends_no_wait(scene, monkeypatch) -> None:
    """Its API may be down for a while, and with it the connection."""
    lookup, failed = BaseHook.get_connection, list[float]()

    def get_connection(conn_id: str) -> Any:
        if 90 < scene.time.now < 400:
            failed.append(scene.time.now)
            raise OSError("the API server is down")
        return lookup(conn_id)

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get_connection))
    all_picked_up(scene, 1, 300)
    assert failed


def test_the_service_is_not_asked_again_before_its_retry_after(scene) -> None:
    fault = {"kind": "error", "status": 429, "retry_after": "120"}
    all_picked_up(scene, 1, 30, lambda: scene.sandbox.plan_faults(fault), interval=10.0)
    first, second, *_ = [at for at, _ in scene.time.asked]
    assert second - first >= 119


def test_a_key_that_is_replaced_in_the_connection_during_a_poll_ends_no_wait(scene, monkeypatch) -> None:
    def replace(_: httpx.Request) -> None:
        if scene.time.now > 90:
            scene.time.on_call = lambda _: None
            old, user = scene.sandbox.transfer_api_key, scene.sandbox.state()["user"]
            scene.sandbox.transfer_api_key = scene.sandbox.new_key(user)
            monkeypatch.setenv(CONNECTION, scene.sandbox.airflow_connection())
            scene.sandbox.revoke_key(old)

    scene.time.on_call = replace
    all_picked_up(scene, 3, 300)
    assert 401 in {call["status"] for call in scene.polls()}


def test_airflow_is_asked_for_the_connection_in_another_thread_and_one_question_at_a_time(scene, monkeypatch) -> None:
    """Airflow up to 3.2.1 ends a triggerer that asks two questions at once."""
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", scene.sandbox.airflow_connection())
    lookup, running, most, asked = BaseHook.get_connection, [0], [0], dict[str, threading.Thread]()

    def get_connection(conn_id: str) -> Any:
        asked[conn_id] = threading.current_thread()
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            time.sleep(1)  # until everybody else sleeps, too
            return lookup(conn_id)
        finally:
            running[0] -= 1

    sent = scene.send(2)
    tasks = [scene.wait(sent[0]), scene.wait(sent[1], outbound_transfer_conn_id="other")]
    triggers = [deferred(task).trigger for task in tasks]
    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get_connection))

    async def story() -> None:
        triggerer = Triggerer()
        await triggerer.start(*triggers)
        await triggerer.until(lambda: len(asked) == len(tasks) and scene.polls())
        await triggerer.stop()

    scene.time.run(story())
    assert threading.current_thread() not in asked.values()
    assert most == [1]


def test_a_sensor_defers_without_a_call_and_the_stored_trigger_has_no_key(scene) -> None:
    task = scene.wait(scene.send()[0])
    stored = json.dumps(deferred(task).trigger.serialize())
    assert scene.calls() == []
    assert scene.sandbox.transfer_api_key not in stored
    assert scene.sandbox.event_api_key not in stored
