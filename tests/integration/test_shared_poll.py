"""All deferred waits of a connection share one poll: what it costs, what ends a wait, and what holds up none.

The tasks are sensors in a triggerer's own runner, against the sandbox, in virtual time that it shares with them.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from support import transfers
from support.airflow_names import BaseHook, TaskDeferred
from support.transfers import ANN, BOB, pick_up
from support.triggers import PAUSE, Triggerer
from support.waiting_tasks import Scene, WaitingTask

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

#: Seconds within which a poll, and the runner of triggers, do what is due.
SOON = 10.0 + PAUSE

COMPLETE = ("", "complete")


def outcomes(tasks: list[WaitingTask]) -> set[tuple[str, Any]]:
    return {task.outcome for task in tasks}


def all_picked_up(scene: Scene, count: int, at: float, first: Callable[[], Any] = lambda: None) -> list[WaitingTask]:
    """Play so many waits, whose transfers are picked up then; each must end so. Before, ``first`` happens."""
    sent = scene.send(count)
    tasks = [scene.wait(one) for one in sent]
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


# ------------------------------------------------------------------------------------------------------ what it costs


def test_waits_of_a_connection_share_the_calls(scene: Scene) -> None:
    tasks = all_picked_up(scene, 150, 1_200)
    # Two pages show all. Alone, each wait would make 20 calls.
    assert len(scene.polls()) <= 6 * (1_200 / 60) + 30
    assert max(map(lasted, tasks)) <= 1_200 + 2 * 60 + 60 + SOON


def test_a_quick_wait_does_not_wait_for_the_slow_ones(scene: Scene) -> None:
    quick, *slow = scene.send(21)
    tasks = [scene.wait(quick, interval=10.0), *(scene.wait(one, interval=600.0) for one in slow)]
    scene.time.after(300, lambda: pick_up(scene.sandbox, quick))
    scene.play(*tasks, until=lambda: tasks[0].ended)
    assert tasks[0].outcome == COMPLETE
    assert lasted(tasks[0]) <= 300 + 2 * 10 + SOON


def test_polls_leave_most_of_a_keys_calls_to_deliveries(scene: Scene) -> None:
    """No listing shows a draft, so each of these waits takes a call of its own."""
    drafts = transfers.create(scene.sandbox, 100)
    scene.calls_before = len(scene.sandbox.requests())
    tasks = [scene.wait(one, timeout=1_200.0) for one in drafts]
    scene.play(*tasks)
    assert outcomes(tasks) == {("AirflowSensorTimeout", "draft")}
    assert {call["status"] for call in scene.polls()} == {200}
    assert len(scene.polls()) <= 30 * (scene.time.now / 60) + 60


# --------------------------------------------------------------------------------------------------------------- times


def test_an_expiry_is_seen_within_seconds(scene: Scene) -> None:
    soon, later = scene.send(2)
    scene.sandbox.set_expiry(soon, 900.0)
    tasks = [scene.wait(one, interval=7_200.0) for one in (soon, later)]
    scene.play(*tasks, until=lambda: tasks[0].ended)
    assert tasks[0].outcome == ("AirflowFailException", "expired")
    assert 890 <= lasted(tasks[0]) <= 900 + 5 + SOON


def test_a_deadline_ends_a_wait_though_no_poll_ever_succeeds(scene: Scene) -> None:
    task = scene.wait(scene.send()[0], timeout=300.0)
    scene.time.on_call = lambda _: httpx.Response(503)
    scene.play(task)
    assert task.outcome == ("AirflowSensorTimeout", None)
    assert 300 <= lasted(task) <= 300 + 240 + SOON


def test_a_deadline_that_has_passed_while_no_triggerer_ran_is_followed_by_a_poll(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, timeout=300.0)
    deferral = deferred(task)
    time.sleep(3_600)
    pick_up(scene.sandbox, sent)
    # The first call of the last poll fails, too.
    scene.sandbox.plan_faults({"kind": "error", "status": 503})
    task.fired(deferral, scene.time.run(Triggerer().first_event(deferral.trigger)))
    assert task.go_on()["status"] == "complete"


def test_a_clock_that_is_set_past_a_deadline_ends_no_wait_without_a_poll(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, interval=3_000.0)
    scene.time.after(100, lambda: pick_up(scene.sandbox, sent))
    scene.time.after(102, lambda: scene.time.set_calendar(10 * 86_400.0))
    scene.play(task)
    assert task.outcome == COMPLETE


# ---------------------------------------------------------------------------------------------------- what ends a wait


def test_a_transfer_that_the_key_does_not_see_ends_its_own_wait_alone(scene: Scene) -> None:
    (sent,) = scene.send()
    seen, unseen, nonsense = scene.wait(sent), scene.wait("none"), scene.wait("../keys")
    scene.time.after(200, lambda: pick_up(scene.sandbox, sent))
    scene.play(seen, unseen, nonsense)
    assert seen.outcome == COMPLETE
    assert unseen.outcome == nonsense.outcome == ("AirflowFailException", None)
    assert "id is unknown" in str(unseen.error)


def test_a_transfer_that_is_deleted_ends_its_wait(scene: Scene) -> None:
    """No listing shows that: a read of its own does."""
    gone, other = scene.send(2)
    tasks = [scene.wait(one) for one in (gone, other)]

    def answer(request: httpx.Request) -> httpx.Response | None:
        if scene.time.now < 150:
            return None
        if request.url.path.endswith(gone):
            return httpx.Response(404, json={"error": "not_found", "message": ""})
        return listing(scene, without=gone) if request.url.path == "/v1/transfers" else None

    scene.time.on_call = answer
    scene.play(*tasks, until=lambda: tasks[0].ended)
    assert tasks[0].outcome == ("AirflowFailException", "pending")
    assert tasks[1].ended is None


def test_an_error_of_a_proxy_ends_no_wait(scene: Scene) -> None:
    faults = [{"kind": "error", "status": status, "code": ""} for status in (401, 403, 404, 409, 418)]
    all_picked_up(scene, 3, 2_400, lambda: scene.sandbox.plan_faults(*faults * 6))
    scene.sandbox.assert_all_faults_triggered()


FAILURES: list[dict[str, Any]] = [
    {"kind": "error", "status": 500},
    {"kind": "error", "status": 503, "retry_after": "7"},
    {"kind": "error", "status": 429, "retry_after": "3"},
    {"kind": "error", "status": 502, "code": ""},
    {"kind": "reset", "effect": "before"},
    {"kind": "reset", "effect": "after"},
    {"kind": "reset_in_response", "after_bytes": 20},
    {"kind": "malformed_json"},
]


def test_failures_of_polls_end_no_wait(scene: Scene) -> None:
    all_picked_up(scene, 5, 2_400, lambda: scene.sandbox.plan_faults(*FAILURES, *FAILURES))
    scene.sandbox.assert_all_faults_triggered()


def test_an_error_of_airflow_ends_no_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_service_is_not_asked_again_before_its_retry_after(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, interval=10.0)
    scene.sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": "120"})
    scene.time.after(30, lambda: pick_up(scene.sandbox, sent))
    scene.play(task)
    assert task.outcome == COMPLETE
    first, second, *_ = [at for at, _ in scene.time.asked]
    assert second - first >= 119


@pytest.mark.parametrize("seconds", ["86400", "9" * 40, "soon", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_retry_after_of_years_ends_no_wait_and_stops_no_poll_for_long(scene: Scene, seconds: str) -> None:
    fault = {"kind": "error", "status": 429, "retry_after": seconds}
    assert max(map(lasted, all_picked_up(scene, 3, 10, lambda: scene.sandbox.plan_faults(fault)))) <= 15 * 60


# ------------------------------------------------------------------------------------------------------------- the key


def replace_key(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a new key in the connection, and revoke the old one."""
    old, user = scene.sandbox.transfer_api_key, scene.sandbox.state()["user"]
    scene.sandbox.transfer_api_key = scene.sandbox.new_key(user)
    monkeypatch.setenv(CONNECTION, scene.sandbox.airflow_connection())
    scene.sandbox.revoke_key(old)


def test_a_key_that_is_replaced_in_the_connection_is_used_by_the_next_poll(scene, monkeypatch) -> None:
    all_picked_up(scene, 5, 300, lambda: scene.time.after(100, lambda: replace_key(scene, monkeypatch)))


def test_a_key_that_is_replaced_while_a_poll_is_under_way_ends_no_wait(scene, monkeypatch) -> None:
    def replace(_: httpx.Request) -> None:
        if scene.time.now > 90:
            scene.time.on_call = lambda _: None
            replace_key(scene, monkeypatch)

    scene.time.on_call = replace
    all_picked_up(scene, 3, 300)
    assert 401 in {call["status"] for call in scene.polls()}


# ---------------------------------------------------------------------------------------------------- hostile listings


def row(scene: Scene, transfer_id: str, **changes: Any) -> dict[str, Any]:
    """A transfer as a listing has it."""
    return {name: value for name, value in scene.sandbox.transfer(transfer_id).items() if name != "files"} | changes


def listing(scene: Scene, *, without: str = "") -> httpx.Response:
    """All transfers that are waited for on one page, whatever their status."""
    ids = [str(task.make().transfer_id) for task in scene.tasks]
    return page([row(scene, one) for one in ids if one != without])


def page(rows: list[Any], cursor: str | None = None) -> httpx.Response:
    return httpx.Response(200, json={"data": rows, "next_cursor": cursor})


@pytest.mark.parametrize("how", ["unreadable", 500, 404])
def test_a_transfer_that_nothing_can_read_holds_up_no_other(scene: Scene, how: Any) -> None:
    bad, *good = scene.send(4)
    tasks = [scene.wait(bad, timeout=900.0), *(scene.wait(one, timeout=3_600.0) for one in good)]

    def answer(request: httpx.Request) -> httpx.Response | None:
        wrong = row(scene, bad, subject=7)
        if request.url.path.endswith(bad):
            return httpx.Response(how) if how != "unreadable" else httpx.Response(200, json=wrong)
        if request.url.path != "/v1/transfers":
            return None
        status = request.url.params.get("status", "all")
        rows = [row(scene, one) for one in good] + [wrong, None, {"id": None}, 7] * (how == "unreadable")
        return page([one for one in rows if not isinstance(one, dict) or one.get("status", "") in (status, "")])

    scene.time.on_call = answer
    scene.time.after(300, lambda: [pick_up(scene.sandbox, one) for one in good])
    scene.play(*tasks)
    assert tasks[0].outcome == ("AirflowSensorTimeout", None)
    assert outcomes(tasks[1:]) == {COMPLETE}
    assert max(map(lasted, tasks[1:])) <= 300 + 5 * 60 + SOON


# ------------------------------------------------------------------------------------------------------- the triggerer


def test_listings_that_show_nothing_or_never_end_hold_up_no_wait(scene: Scene) -> None:
    sent = scene.send(3)
    tasks = [scene.wait(one) for one in sent]
    listed = [0]

    def answer(request: httpx.Request) -> httpx.Response | None:
        if request.url.path != "/v1/transfers":
            return None
        listed[0] += 1
        return page([], str(listed[0]) if scene.time.now > 150 else None)

    scene.time.on_call = answer
    scene.time.after(300, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
    assert max(map(lasted, tasks)) <= 3_600


def test_one_pickup_of_two_ends_the_wait_that_accepts_it_alone(scene: Scene) -> None:
    (sent,) = scene.send(1, ANN, BOB)
    accepts, other = scene.wait(sent, accept_partial=True), scene.wait(sent)
    scene.time.after(100, lambda: pick_up(scene.sandbox, sent, BOB))
    scene.play(accepts, other, until=lambda: accepts.ended)
    assert accepts.outcome == ("", "partial")
    assert accepts.result["not_picked_up"] == [ANN]
    assert other.ended is None


def test_a_wait_goes_on_in_another_triggerer(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, timeout=1_000.0)
    deferral = deferred(task)

    async def die() -> None:
        triggerer = Triggerer()
        await triggerer.start(deferral.trigger)
        await asyncio.sleep(500)
        await triggerer.stop()

    scene.time.run(die())
    task.fired(deferral, scene.time.run(Triggerer().first_event(deferral.trigger)))
    with pytest.raises(Exception, match="Timed out waiting"):
        task.go_on()
    assert 1_000 <= scene.time.now <= 1_000 + 2 * SOON, "its deadline is that of the task"


def test_nothing_is_asked_once_nobody_waits(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent)

    async def story() -> int:
        triggerer = Triggerer()
        await scene.follow(task, triggerer=triggerer, until=lambda: scene.polls())
        await triggerer.stop()
        calls = len(scene.polls())
        await asyncio.sleep(600)
        return calls

    assert scene.time.run(story()) == len(scene.polls()) > 0


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


def test_a_trigger_whose_stored_arguments_are_nonsense_fails_alone(scene: Scene) -> None:
    good, bad = (scene.wait(one) for one in scene.send(2))
    scene.time.after(60, lambda: pick_up(scene.sandbox, str(good.make().transfer_id)))
    stored = [deferred(task) for task in (good, bad)]
    nonsense = [{"transfer_id": None}, {"transfer_id": 7}, {"deadline": "soon"}, {"rules": {"on_expiry": "fail"}}]

    async def story() -> Any:
        triggerer = Triggerer()
        kind, arguments = type(stored[1].trigger), stored[1].trigger.serialize()[1]
        wrong = await triggerer.start(*(kind(**(arguments | change)) for change in nonsense))
        right = await triggerer.start(stored[0].trigger)
        await triggerer.until(lambda: right[0] in triggerer.events and triggerer.failed.keys() >= set(wrong))
        await triggerer.stop()
        return triggerer.events[right[0]][0]

    good.fired(stored[0], scene.time.run(story()))
    assert good.go_on()["status"] == "complete"


def test_the_stored_trigger_has_no_key(scene: Scene) -> None:
    task = scene.wait(scene.send()[0])
    stored = json.dumps(deferred(task).trigger.serialize())
    assert scene.sandbox.transfer_api_key not in stored
    assert scene.sandbox.event_api_key not in stored
