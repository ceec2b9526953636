"""All deferred waits of a connection share one poll: what it costs, what ends a wait, and what holds up none.

The tasks are sensors in a triggerer's own runner, against the sandbox, in virtual time that it shares with them.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support import transfers
from support.airflow_names import BaseHook, TaskDeferred
from support.transfers import ANN, BOB, pick_up
from support.triggers import PAUSE, Triggerer
from support.waiting_tasks import Scene, WaitingTask

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

#: Seconds within which a poll, and the runner of triggers, do what is due.
SOON = 10.0 + PAUSE

COMPLETE = ("", "complete")


@pytest.fixture
def scene(sandbox: Sandbox, connection: str) -> Iterator[Scene]:
    scene = Scene(sandbox)
    with scene.time.running():
        yield scene


def outcomes(tasks: list[WaitingTask]) -> set[tuple[str, Any]]:
    return {task.outcome for task in tasks}


def lasted(task: WaitingTask) -> float:
    assert task.ended is not None
    return task.ended - task.began


# ------------------------------------------------------------------------------------------------------ what it costs


def test_a_pickup_ends_the_wait_with_the_transfer_as_it_then_is(scene: Scene) -> None:
    (sent,) = scene.send(1, ANN, BOB)
    task = scene.wait(sent)
    scene.time.after(100, lambda: pick_up(scene.sandbox, sent, ANN))
    scene.time.after(200, lambda: pick_up(scene.sandbox, sent, BOB))
    scene.play(task)
    assert task.outcome == COMPLETE
    assert {one["email"] for one in task.result["recipients"] if one["picked_up_at"]} == {ANN, BOB}
    assert "files" not in task.result
    assert lasted(task) <= 200 + 2 * 60 + SOON


def test_waits_of_a_connection_share_the_calls(scene: Scene) -> None:
    sent = scene.send(150)
    tasks = [scene.wait(one) for one in sent]
    scene.time.after(1_200, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
    # Two pages show all. Alone, each wait would make 20 calls.
    assert len(scene.polls()) <= 6 * (1_200 / 60) + 30
    assert max(map(lasted, tasks)) <= 1_200 + 2 * 60 + 60 + SOON


def test_a_wait_that_begins_later_joins_the_poll(scene: Scene) -> None:
    early, late = (scene.wait(one) for one in scene.send(2))
    triggerer = Triggerer()
    scene.time.after(200, lambda: [pick_up(scene.sandbox, str(one.make().transfer_id)) for one in (early, late)])

    async def story() -> None:
        async def join() -> None:
            await asyncio.sleep(90)
            await scene.follow(late, triggerer=triggerer)

        await asyncio.gather(scene.follow(early, triggerer=triggerer), join())
        await triggerer.stop()

    scene.time.run(story())
    assert outcomes([early, late]) == {COMPLETE}
    assert len(scene.polls()) <= 12, "of both together, no more than one would make"


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


def test_one_last_poll_precedes_a_timeout(scene: Scene) -> None:
    first, second = scene.send(2)
    tasks = [scene.wait(one, interval=600.0, timeout=1_000.0) for one in (first, second)]
    scene.time.after(990, lambda: pick_up(scene.sandbox, first))
    scene.play(*tasks)
    assert [task.outcome for task in tasks] == [COMPLETE, ("AirflowSensorTimeout", "pending")]
    assert 1_000 <= lasted(tasks[1]) <= 1_000 + SOON


def test_a_deadline_ends_a_wait_though_no_poll_ever_succeeds(scene: Scene) -> None:
    task = scene.wait(scene.send()[0], timeout=300.0)
    scene.time.on_call = lambda _: httpx.Response(503)
    scene.play(task)
    assert task.outcome == ("AirflowSensorTimeout", None)
    assert 300 <= lasted(task) <= 300 + 240 + SOON


def test_a_deadline_that_has_passed_while_no_triggerer_ran_is_followed_by_a_poll(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, timeout=300.0)
    task.begin_try()
    with pytest.raises(TaskDeferred) as deferred:
        task.go_on()
    time.sleep(3_600)
    pick_up(scene.sandbox, sent)
    # The first call of the last poll fails, too.
    scene.sandbox.plan_faults({"kind": "error", "status": 503})
    task.fired(deferred.value, scene.time.run(Triggerer().first_event(deferred.value.trigger)))
    assert task.go_on()["status"] == "complete"


def test_a_clock_that_is_set_past_a_deadline_ends_no_wait_without_a_poll(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, interval=3_000.0)
    scene.time.after(100, lambda: pick_up(scene.sandbox, sent))
    scene.time.after(102, lambda: scene.time.set_calendar(10 * 86_400.0))
    scene.play(task)
    assert task.outcome == COMPLETE


# ---------------------------------------------------------------------------------------------------- what ends a wait


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_every_wait_and_says_what_to_do(scene: Scene, status: int) -> None:
    tasks = [scene.wait(one) for one in scene.send(3)]
    if status == 401:
        scene.sandbox.revoke_key(scene.sandbox.transfer_api_key)
    else:
        scene.sandbox.patch_account(api_enabled=False)
    scene.play(*tasks)
    for task in tasks:
        assert task.outcome == ("AirflowFailException", None)
        assert ("Check the API key" if status == 401 else "administrator") in str(task.error)
        assert scene.sandbox.transfer_api_key not in str(task.error)


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


@pytest.mark.parametrize("status", [401, 403, 404, 409, 418])
def test_an_error_of_a_proxy_ends_no_wait(scene: Scene, status: int) -> None:
    sent = scene.send(3)
    tasks = [scene.wait(one) for one in sent]
    scene.sandbox.plan_faults(*[{"kind": "error", "status": status, "code": ""}] * 6)
    scene.time.after(1_500, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
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
    sent = scene.send(5)
    tasks = [scene.wait(one) for one in sent]
    scene.sandbox.plan_faults(*FAILURES, *FAILURES)
    scene.time.after(2_400, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
    scene.sandbox.assert_all_faults_triggered()


def test_an_error_of_airflow_ends_no_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its API may be down for a while, and with it the connection."""
    (sent,) = scene.send()
    task, lookup = scene.wait(sent), BaseHook.get_connection
    failed: list[float] = []

    def get_connection(conn_id: str) -> Any:
        if 90 < scene.time.now < 400:
            failed.append(scene.time.now)
            raise OSError("the API server is down")
        return lookup(conn_id)

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get_connection))
    scene.time.after(300, lambda: pick_up(scene.sandbox, sent))
    scene.play(task)
    assert task.outcome == COMPLETE
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
    sent = scene.send(3)
    tasks = [scene.wait(one) for one in sent]
    scene.sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": seconds})
    scene.time.after(10, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
    assert max(map(lasted, tasks)) <= 15 * 60


# ------------------------------------------------------------------------------------------------------------- the key


def replace_key(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a new key in the connection, and revoke the old one."""
    old, user = scene.sandbox.transfer_api_key, scene.sandbox.state()["user"]
    scene.sandbox.transfer_api_key = scene.sandbox.new_key(user)
    monkeypatch.setenv(CONNECTION, scene.sandbox.airflow_connection())
    scene.sandbox.revoke_key(old)


def test_a_key_that_is_replaced_in_the_connection_is_used_by_the_next_poll(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = scene.send(5)
    tasks = [scene.wait(one) for one in sent]
    scene.time.after(100, lambda: replace_key(scene, monkeypatch))
    scene.time.after(300, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}


def test_a_key_that_is_replaced_while_a_poll_is_under_way_ends_no_wait(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = scene.send(3)
    tasks = [scene.wait(one) for one in sent]

    def replace(_: httpx.Request) -> None:
        if scene.time.now > 90:
            scene.time.on_call = lambda _: None
            replace_key(scene, monkeypatch)

    scene.time.on_call = replace
    scene.time.after(300, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
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


def test_a_transfer_that_nothing_can_read_holds_up_no_other(scene: Scene) -> None:
    bad, *good = scene.send(4)
    tasks = [scene.wait(bad, timeout=900.0), *(scene.wait(one, timeout=3_600.0) for one in good)]

    def answer(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith(bad):
            return httpx.Response(200, json=row(scene, bad, subject=7))
        if request.url.path == "/v1/transfers":
            status = request.url.params.get("status", "all")
            rows = [row(scene, one) for one in good] + [row(scene, bad, subject=7), None, {"id": None}, 7]
            return page([one for one in rows if not isinstance(one, dict) or one.get("status", "") in (status, "")])
        return None

    scene.time.on_call = answer
    scene.time.after(300, lambda: [pick_up(scene.sandbox, one) for one in good])
    scene.play(*tasks)
    assert tasks[0].outcome == ("AirflowSensorTimeout", None)
    assert outcomes(tasks[1:]) == {COMPLETE}
    assert max(map(lasted, tasks[1:])) <= 300 + 5 * 60 + SOON


@pytest.mark.parametrize("status", [500, 404])
def test_a_transfer_whose_read_always_fails_holds_up_no_other(scene: Scene, status: int) -> None:
    bad, *good = scene.send(4)
    tasks = [scene.wait(bad, timeout=900.0), *(scene.wait(one, timeout=3_600.0) for one in good)]

    def answer(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith(bad):
            return httpx.Response(status)
        return listing(scene, without=bad) if request.url.path == "/v1/transfers" else None

    scene.time.on_call = answer
    scene.time.after(300, lambda: [pick_up(scene.sandbox, one) for one in good])
    scene.play(*tasks)
    assert tasks[0].outcome == ("AirflowSensorTimeout", None)
    assert outcomes(tasks[1:]) == {COMPLETE}
    assert max(map(lasted, tasks[1:])) <= 300 + 5 * 60 + SOON


def test_a_page_that_cannot_be_read_holds_up_no_wait(scene: Scene) -> None:
    sent = scene.send(110)
    tasks = [scene.wait(one, timeout=5 * 3_600.0) for one in sent]
    scene.time.on_call = lambda request: httpx.Response(500) if "cursor" in request.url.params else None
    scene.time.after(300, lambda: [pick_up(scene.sandbox, one) for one in sent])
    scene.play(*tasks)
    assert outcomes(tasks) == {COMPLETE}
    assert max(map(lasted, tasks)) <= 3_600


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


def test_a_row_that_comes_twice_and_rows_of_others_change_nothing(scene: Scene) -> None:
    sent, other = scene.send(2)
    task = scene.wait(sent)
    complete = row(scene, other, status="complete")
    twice = [complete, row(scene, sent), row(scene, sent), complete]

    def answer(request: httpx.Request) -> httpx.Response | None:
        return page(twice) if request.url.path == "/v1/transfers" and scene.time.now < 300 else None

    scene.time.on_call = answer
    scene.time.after(400, lambda: pick_up(scene.sandbox, sent))
    scene.play(task)
    assert task.outcome == COMPLETE
    assert task.result["id"] == sent
    assert lasted(task) >= 400


def test_a_status_that_the_documentation_does_not_list_ends_no_wait(scene: Scene) -> None:
    first, second = scene.send(2)
    for one in (first, second):
        scene.sandbox.set_stored_status(one, "from the old days")
    tasks = [scene.wait(first, timeout=600.0), scene.wait(second)]
    scene.time.after(900, lambda: scene.sandbox.set_stored_status(second, "complete"))
    scene.play(*tasks)
    assert tasks[0].outcome == ("AirflowSensorTimeout", "unknown")
    assert tasks[1].outcome == COMPLETE


def test_a_draft_is_waited_for_until_it_is_sent_and_picked_up(scene: Scene) -> None:
    (draft,) = transfers.create(scene.sandbox)
    scene.time.after(200, lambda: transfers.send_draft(scene.sandbox, draft))
    scene.time.after(400, lambda: pick_up(scene.sandbox, draft))
    task = scene.wait(draft)
    scene.play(task)
    assert task.outcome == COMPLETE


def test_one_pickup_of_two_ends_the_wait_that_accepts_it_alone(scene: Scene) -> None:
    (sent,) = scene.send(1, ANN, BOB)
    accepts, other = scene.wait(sent, accept_partial=True), scene.wait(sent)
    scene.time.after(100, lambda: pick_up(scene.sandbox, sent, BOB))
    scene.play(accepts, other, until=lambda: accepts.ended)
    assert accepts.outcome == ("", "partial")
    assert accepts.result["not_picked_up"] == [ANN]
    assert other.ended is None


# ------------------------------------------------------------------------------------------------------- the triggerer


def test_a_wait_goes_on_in_another_triggerer(scene: Scene) -> None:
    (sent,) = scene.send()
    task = scene.wait(sent, timeout=1_000.0)
    task.begin_try()
    with pytest.raises(TaskDeferred) as deferred:
        task.go_on()
    trigger = deferred.value.trigger

    async def die() -> None:
        triggerer = Triggerer()
        await triggerer.start(trigger)
        await asyncio.sleep(500)
        await triggerer.stop()

    scene.time.run(die())
    task.fired(deferred.value, scene.time.run(Triggerer().first_event(trigger)))
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


def test_airflow_is_asked_for_the_connection_in_another_thread_and_one_question_at_a_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow up to 3.2.1 ends a triggerer that asks two questions at once."""
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", scene.sandbox.airflow_connection())
    lookup, running, most, threads = BaseHook.get_connection, [0], [0], set[threading.Thread]()

    def get_connection(conn_id: str) -> Any:
        threads.add(threading.current_thread())
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            threading.Event().wait(0.5)
            return lookup(conn_id)
        finally:
            running[0] -= 1

    sent = scene.send(2)
    tasks = [scene.wait(sent[0]), scene.wait(sent[1], outbound_transfer_conn_id="other")]
    deferred = []
    for task in tasks:
        task.begin_try()
        with pytest.raises(TaskDeferred) as raised:
            task.go_on()
        deferred.append(raised.value.trigger)
    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get_connection))

    async def story() -> None:
        triggerer = Triggerer()
        await triggerer.start(*deferred)
        await asyncio.sleep(300)
        await triggerer.stop()

    scene.time.run(story())
    assert scene.polls()
    assert threads
    assert threading.current_thread() not in threads
    assert most == [1]


def test_a_trigger_whose_stored_arguments_are_nonsense_fails_alone(scene: Scene) -> None:
    good, bad = (scene.wait(one) for one in scene.send(2))
    scene.time.after(60, lambda: pick_up(scene.sandbox, str(good.make().transfer_id)))
    stored = []
    for task in (good, bad):
        task.begin_try()
        with pytest.raises(TaskDeferred) as deferred:
            task.go_on()
        stored.append(deferred.value)
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
    task.begin_try()
    with pytest.raises(TaskDeferred) as deferred:
        task.go_on()
    stored = json.dumps(deferred.value.trigger.serialize())
    assert scene.sandbox.transfer_api_key not in stored
    assert scene.sandbox.event_api_key not in stored
