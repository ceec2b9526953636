"""Waiting for a transfer's end: each case in every way to wait, with one outcome, one error and one XCom."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, BaseNotifier
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from outbound_transfer.airflow_compat.names import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
    mask_secret,
    timezone,
)
from outbound_transfer.exceptions import outcome_of
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.polling import poller, schedule
from outbound_transfer.protocol.errors import RateLimited
from outbound_transfer.protocol.models import build_new_transfer, to_builtins
from outbound_transfer.protocol.outcomes import TransferOutcome
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.tasks import waiting
from outbound_transfer.triggers import transfer as triggers
from outbound_transfer.triggers.transfer import TransferOutcomeTrigger, TransferTrigger
from outbound_transfer_sandbox.testing import Sandbox
from support.tasks import InMemoryStateStore, ProcessCrashed
from support.timeouts import TEST_TIMEOUT, eventually
from support.triggers import first_event, first_shared_event

ANN, BOB = "ann@example.com", "bob@example.com"
DAG_OF_TASK = SimpleNamespace(
    task_ids=["deliver"],
    get_template_env=DAG("dag", schedule=None).get_template_env,
    render_template_as_native_obj=False,
)
WAYS = ["poke", "reschedule", "deferred", "deliver", "deliver deferred"]

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture(autouse=True)
def no_settling(monkeypatch) -> None:
    monkeypatch.setattr(poller, "COALESCE_SECONDS", 0.05)


@pytest.fixture
def report(tmp_path) -> str:
    path = tmp_path / "report.csv"
    path.write_bytes(b"a,b\n")
    return str(path)


@pytest.fixture
def sent(hook, report) -> str:
    """A transfer to two recipients."""
    return send(report, InMemoryStateStore())["id"]


def send(report: str, store: InMemoryStateStore, **arguments: Any) -> Any:
    operator = DeliverFilesOperator(
        task_id="deliver", subject="Report", recipients=[ANN, BOB], files=report, **arguments
    )
    return operator.execute(context_of(store))


def context_of(store: InMemoryStateStore, max_tries: int = 0, clear_number: int | None = None) -> Any:
    rescheduled = store.get("rescheduled")
    ti = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id="deliver",
        task=SimpleNamespace(retries=0),
        map_index=-1,
        get_ti_count=lambda **_: 1,
        get_task_states=lambda **_: {"run": {"deliver": "running"}},
        max_tries=max_tries,
        try_number=1,
        xcom_push=xcoms_of(store).__setitem__,
        xcom_pull=lambda task_ids, key: [xcoms_of(store).get(key)],
        start_date=timezone.utcnow(),
        get_first_reschedule_date=lambda _: rescheduled and datetime.fromisoformat(rescheduled),
    )
    runs = {} if clear_number is None else {"dag_run": SimpleNamespace(clear_number=clear_number)}
    return {"ti": ti, "task_state_store": store, "dag": DAG_OF_TASK, **runs}


def xcoms_of(store: InMemoryStateStore) -> dict[str, Any]:
    """What the task with this store has pushed."""
    return vars(store).setdefault("xcoms", {})


@pytest.fixture(params=WAYS)
def wait(request, report) -> Callable[..., Any]:
    """``wait(**arguments)`` waits for ``wait.sent`` in one way to its end: the XCom, or the error raised."""
    store = InMemoryStateStore()
    sent = send(report, store)["id"]
    is_delivery, is_deferred = request.param.startswith("deliver"), request.param.endswith("deferred")

    def make(**arguments: Any) -> Any:
        arguments = {
            "task_id": "wait",
            "deferrable": is_deferred,
            "poke_interval": 1.0,
            "timeout": 5.0 * TEST_TIMEOUT,
        } | arguments
        if is_delivery:  # what is kept of the earlier try makes it go on with the transfer that was sent
            return DeliverFilesOperator(subject="Report", recipients=[ANN, BOB], files=report, wait=True, **arguments)
        mode = "reschedule" if request.param == "reschedule" else "poke"
        return TransferSensor(transfer_id=sent, mode=mode, **arguments)

    def wait(**arguments: Any) -> Any:
        return to_the_end(lambda: make(**arguments), store)

    wait.sent, wait.make, wait.store = sent, make, store
    return wait


def to_the_end(make: Callable[[], Any], store: InMemoryStateStore) -> Any:
    method, kwargs = "execute", {}
    while True:
        context = context_of(store)
        try:
            return getattr(make(), method)(context=context, **kwargs)
        except TaskDeferred as deferred:
            event = asyncio.run(asyncio.wait_for(first_event(deferred.trigger), TEST_TIMEOUT))
            kwargs = {"next_method": deferred.method_name, "next_kwargs": {"event": event.payload}}
            method = "resume_execution"
        except AirflowRescheduleException as rescheduled:
            store.set("rescheduled", store.get("rescheduled") or timezone.utcnow().isoformat())
            pause = (rescheduled.reschedule_date - timezone.utcnow()).total_seconds()
            asyncio.run(asyncio.sleep(max(pause, 0)))


def test_all_recipients_picked_up(wait, sandbox) -> None:
    for recipient in (ANN, BOB):
        sandbox.pickup(wait.sent, recipient)
    final = wait()
    assert (final["id"], final["status"]) == (wait.sent, "complete")
    assert all(recipient["picked_up_at"] for recipient in final["recipients"])
    fields = {"id", "status", "subject", "message", "recipients", "expires_at", "sent_at", "not_picked_up"}
    assert set(final) == fields
    assert "outcome" not in xcoms_of(wait.store)


def test_one_is_enough_where_that_is_accepted(wait, sandbox) -> None:
    sandbox.pickup(wait.sent, BOB)
    final = wait(accept_partial=True)
    assert (final["status"], final["not_picked_up"]) == ("partial", [ANN])


@pytest.mark.parametrize("end", ["expired", "canceled"])
def test_an_end_that_is_a_success(wait, sandbox, end) -> None:
    if end == "canceled":
        sandbox.cancel(wait.sent)
    else:
        sandbox.advance_clock(40 * 86_400)
    assert wait(**{f"on_{end}": "succeed"})["status"] == end


@pytest.mark.parametrize("end", ["complete", "accepted", "expired", "skipped", "timed out"])
def test_the_receipt_is_written_when_the_wait_is_over(wait, sandbox, end, tmp_path) -> None:
    sandbox.pickup(wait.sent, BOB)
    if end == "complete":
        sandbox.pickup(wait.sent, ANN)
    elif end in ("expired", "skipped"):
        sandbox.advance_clock(40 * 86_400)
    arguments = {
        "accept_partial": end == "accepted",
        "on_expired": "skip" if end == "skipped" else "fail",
        "timeout": 2.0 if end == "timed out" else 5.0 * TEST_TIMEOUT,
        "finish_in_triggerer": True,
        "receipt": str(tmp_path / "receipts/{transfer_id}.json"),
    }
    with nullcontext() if end in ("complete", "accepted") else pytest.raises(AirflowException):
        wait(**arguments)

    (path,) = (tmp_path / "receipts").iterdir()
    receipt = json.loads(path.read_text())
    assert path.name == f"{wait.sent}.json"
    status = {"complete": "complete", "expired": "expired", "skipped": "expired"}.get(end, "partial")
    assert receipt["transfer"]["status"] == status
    picked_up = {one["email"]: bool(one["picked_up_at"]) for one in receipt["recipients"]}
    assert picked_up == {ANN: end == "complete", BOB: True}
    (file,) = receipt["files"]
    assert (file["name"], file["size"]) == ("report.csv", 4)


@pytest.mark.parametrize(
    ("end", "choice", "error_type"),
    [
        ("expired", "fail", AirflowFailException),
        ("expired", "skip", AirflowSkipException),
        ("canceled", "fail", AirflowFailException),
        ("canceled", "skip", AirflowSkipException),
        ("partial", "fail", AirflowSensorTimeout),
    ],
)
def test_a_wait_without_success_says_who_has_not_picked_up(wait, sandbox, end, choice, error_type) -> None:
    sandbox.pickup(wait.sent, BOB)
    if end == "canceled":
        sandbox.cancel(wait.sent)
    elif end != "partial":
        sandbox.advance_clock(40 * 86_400)
    timeout = 2.0 if end == "partial" else 5.0 * TEST_TIMEOUT
    with pytest.raises(error_type) as raised:
        wait(on_expired=choice, on_canceled=choice, timeout=timeout)
    error, outcome = raised.value, outcome_of(raised.value)
    assert (error.transfer_id, error.not_picked_up) == (wait.sent, [ANN])
    assert outcome == TransferOutcome(
        transfer_id=wait.sent,
        reason=str(error),
        status=end,
        subject="Report",
        picked_up=[BOB],
        not_picked_up=[ANN],
    )
    assert xcoms_of(wait.store)["outcome"] == to_builtins(outcome)


def test_a_refused_key_fails_immediately_and_leaves_unknown_who_has_picked_up(wait, sandbox) -> None:
    sandbox.revoke_key(sandbox.transfer_api_key)
    with pytest.raises(AirflowFailException, match="Check the API key") as raised:
        wait()
    assert (raised.value.transfer_id, raised.value.not_picked_up) == (wait.sent, None)
    assert xcoms_of(wait.store)["outcome"]["not_picked_up"] is None


def test_it_is_given_up_at_the_deadline(wait) -> None:
    began = timezone.utcnow()
    with pytest.raises(AirflowSensorTimeout):
        wait(timeout=1.0)
    assert timezone.utcnow() - began >= timedelta(seconds=1)


def test_without_a_timeout_it_lasts_until_the_expiry(wait, sandbox, monkeypatch) -> None:
    start = timezone.utcnow() - timedelta(days=8)
    wait.store.set("rescheduled", start.isoformat())
    with monkeypatch.context() as then:
        then.setattr(waiting.timezone, "utcnow", lambda: start)
        wait.make(timeout=None).get_or_create_deadline(context_of(wait.store))
    calls = len(sandbox.requests())

    def expire_once_it_waits() -> None:
        eventually(lambda: len(sandbox.requests()) > calls)
        sandbox.advance_clock(40 * 86_400)

    with ThreadPoolExecutor(1) as pool:
        expiry = pool.submit(expire_once_it_waits)
        with pytest.raises(AirflowFailException, match="is expired"):
            wait(timeout=None)
        expiry.result()


def test_passing_failures_are_waited_out(wait, sandbox) -> None:
    for recipient in (ANN, BOB):
        sandbox.pickup(wait.sent, recipient)
    proxy = {"kind": "error", "status": 401, "code": ""}
    sandbox.plan_faults({"kind": "error", "status": 503}, {"kind": "reset"}, {"kind": "malformed_json"}, proxy)
    assert wait()["status"] == "complete"
    assert [fault["state"] for fault in sandbox.faults()] == ["triggered"] * 4


MODES = [{"deferrable": True}, {"deferrable": False}, {"deferrable": False, "mode": "reschedule"}]
NO_TRANSFER = [None, "None", ["t"], {"id": None}]  # the rest: test_waiters.py


@pytest.mark.parametrize("mode", MODES, ids=["deferred", "poke", "reschedule"])
@pytest.mark.parametrize("given", NO_TRANSFER, ids=repr)
def test_an_invalid_transfer_id_is_rejected_before_the_wait(sandbox, given, mode) -> None:
    with pytest.raises(AirflowFailException, match="must be the id of a transfer"):
        sensor(transfer_id=given, **mode).execute(context_of(InMemoryStateStore()))
    assert sandbox.requests() == []


@pytest.mark.parametrize("mode", MODES, ids=["deferred", "poke", "reschedule"])
def test_result_of_a_delivery_is_accepted_as_transfer_id(sandbox, report, mode) -> None:
    result = send(report, InMemoryStateStore())
    for recipient in (ANN, BOB):
        sandbox.pickup(result["id"], recipient)
    final = to_the_end(
        lambda: sensor(transfer_id=result, poke_interval=1.0, timeout=5.0 * TEST_TIMEOUT, **mode), InMemoryStateStore()
    )
    assert (final["id"], final["status"]) == (result["id"], "complete")


STORED_NONSENSE = [
    *({"transfer_id": given} for given in (None, 7, {}, ["t"])),
    *({"deadline": given} for given in (None, "soon")),
    {"on_expired": "maybe"},
    {"on_canceled": None},
]


@pytest.mark.parametrize("wrong", STORED_NONSENSE, ids=repr)
def test_an_invalid_stored_trigger_fails_alone(wrong, sandbox, sent) -> None:
    for recipient in (ANN, BOB):
        sandbox.pickup(sent, recipient)
    good = {"transfer_id": sent, "poke_interval": 1.0, "deadline": "2100-01-01T00:00:00+00:00"}
    good["outbound_transfer_conn_id"] = "outbound_transfer_default"

    async def both() -> list[Any]:
        producer = TransferTrigger.create_shared_stream_producer(good)
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue(), asyncio.Queue()]

        async def stream(queue: asyncio.Queue[Any]) -> Any:
            while True:
                yield await queue.get()

        async def pump() -> None:
            async for update, _ in producer.open_stream():
                for queue in queues:
                    queue.put_nowait(update)

        pumping = asyncio.ensure_future(pump())
        triggers = [TransferTrigger(**{**good, **change}) for change in (wrong, {})]
        streams = [one.filter_shared_stream(stream(queue)) for one, queue in zip(triggers, queues, strict=True)]
        events = await asyncio.wait_for(asyncio.gather(*(anext(one) for one in streams)), TEST_TIMEOUT)
        pumping.cancel()
        await asyncio.gather(pumping, *(one.aclose() for one in streams), return_exceptions=True)
        return [event.payload for event in events]

    nonsense, neighbour = asyncio.run(both())
    assert nonsense["status"] == "error"
    with pytest.raises(AirflowFailException, match="Invalid arguments of the stored trigger"):
        sensor().resolve_event(nonsense)
    assert (neighbour["status"], neighbour["transfer"]["status"]) == ("finished", "complete")


@pytest.mark.parametrize("given", [float("nan"), float("inf"), -1, "{{ params.every }}", ""])
@pytest.mark.parametrize("argument", ["poke_interval", "timeout"])
def test_an_invalid_duration_is_rejected_before_the_task_defers(report, argument, given) -> None:
    store = InMemoryStateStore()
    send(report, store)
    with pytest.raises(AirflowFailException, match=f"^{argument} must be"):
        send(report, store, wait=True, deferrable=True, **{argument: given})


def test_a_timeout_beyond_the_calendar_is_refused(report) -> None:
    store = InMemoryStateStore()
    send(report, store)
    with pytest.raises(AirflowFailException, match="too long"):
        send(report, store, wait=True, deferrable=True, timeout=10**12)


@pytest.mark.parametrize("poke_interval", [float("nan"), "soon"], ids=repr)
def test_an_invalid_stored_interval_becomes_the_default(sent, sandbox, poke_interval) -> None:
    for recipient in (ANN, BOB):
        sandbox.pickup(sent, recipient)
    trigger = TransferTrigger(sent, "outbound_transfer_default", poke_interval, "2100-01-01T00:00:00+00:00")
    fired = asyncio.run(asyncio.wait_for(first_event(trigger), TEST_TIMEOUT))
    assert fired.payload["status"] == "finished"


def sensor(**arguments: Any) -> TransferSensor:
    return TransferSensor(**{"task_id": "wait", "transfer_id": "t", "deferrable": True, **arguments})


def trigger_of(operator: Any, context: Any) -> TransferTrigger:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    trigger = deferred.value.trigger
    assert isinstance(trigger, TransferTrigger)
    return trigger


def test_a_sensor_has_the_timeout_that_its_user_has_set(monkeypatch) -> None:
    with DAG("waits", schedule=None, default_args={"timeout": 5.0}):
        assert sensor().timeout == 5.0
        assert sensor(task_id="other", timeout=timedelta(seconds=6)).timeout == 6.0
    assert sensor(timeout=7 * 86_400.0).timeout == 7 * 86_400.0
    assert sensor().timeout > 365 * 86_400.0

    monkeypatch.setenv("AIRFLOW__SENSORS__DEFAULT_TIMEOUT", "3600")
    assert sensor().timeout == 3_600.0


@pytest.mark.parametrize("mode", [{"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
def test_a_draft_is_named_as_one(hook, mode) -> None:
    draft = hook.create_transfer(build_new_transfer(subject="Report", recipients=[ANN]))
    store = InMemoryStateStore()
    with pytest.raises(AirflowSensorTimeout, match=r"is draft.* it was never sent, so nobody can pick it up"):
        to_the_end(
            lambda: sensor(transfer_id=draft.id, poke_interval=1.0, timeout=2.0, **{"deferrable": False} | mode), store
        )


def test_deferring_makes_no_call(sandbox) -> None:
    trigger_of(sensor(), context_of(InMemoryStateStore()))
    assert sandbox.requests() == []


@pytest.mark.parametrize(
    ("before", "after"),
    [((2, None), (3, None)), ((3, 0), (3, 1))],
    ids=["", "with fewer retries than before: the tries that it may have are the same"],
)
def test_the_deadline_survives_a_retry_and_begins_anew_with_a_clear(before, after) -> None:
    store = InMemoryStateStore()
    tries = (before, before, after, after)
    first, retried, cleared, again = (trigger_of(sensor(timeout=100.0), context_of(store, *each)) for each in tries)
    assert first.deadline == retried.deadline < cleared.deadline == again.deadline


def test_poking_counts_from_the_first_try_too(sent) -> None:
    store = InMemoryStateStore()
    trigger_of(sensor(timeout=1.0), context_of(store))
    began = timezone.utcnow()
    with pytest.raises(AirflowSensorTimeout):
        sensor(deferrable=False, transfer_id=sent, timeout=1_000.0, poke_interval=1.0).execute(context_of(store))
    assert timezone.utcnow() - began < timedelta(seconds=500)


def test_a_failed_trigger_does_not_end_the_wait() -> None:
    store = InMemoryStateStore()
    before = trigger_of(sensor(), context_of(store))
    for _ in range(waiting.MAX_TRIGGER_FAILURES):
        with pytest.raises(TaskDeferred) as again:
            sensor().resume_execution("__fail__", {"error": "Trigger failure"}, context_of(store))
        assert again.value.trigger.deadline == before.deadline
    with pytest.raises(TaskDeferralError):
        sensor().resume_execution("__fail__", {"error": "Trigger failure"}, context_of(store))


def fail_trigger(store: InMemoryStateStore, **context: Any) -> None:
    with pytest.raises(TaskDeferred):
        sensor().resume_execution("__fail__", {"error": "Trigger failure"}, context_of(store, **context))


def test_a_wait_of_weeks_outlives_any_number_of_failures_that_are_far_apart(monkeypatch) -> None:
    store, now = InMemoryStateStore(), timezone.utcnow()
    trigger_of(sensor(timeout=100 * 86_400.0), context_of(store))
    for day in range(30):
        monkeypatch.setattr(timezone, "utcnow", lambda day=day: now + timedelta(days=day))
        for _ in range(waiting.MAX_TRIGGER_FAILURES - 1):
            fail_trigger(store)


def test_a_trigger_that_always_fails_ends_the_wait_after_the_deadline(monkeypatch) -> None:
    store, now = InMemoryStateStore(), timezone.utcnow()
    trigger_of(sensor(timeout=3_600.0), context_of(store))
    for day in range(1, 1 + waiting.MAX_TRIGGER_FAILURES):
        monkeypatch.setattr(timezone, "utcnow", lambda day=day: now + timedelta(days=day))
        fail_trigger(store)
    with pytest.raises(TaskDeferralError):
        sensor().resume_execution("__fail__", {"error": "Trigger failure"}, context_of(store))


def test_a_clear_forgets_the_failures_of_the_trigger() -> None:
    store = InMemoryStateStore()
    trigger_of(sensor(), context_of(store))
    for clear in range(3):
        for _ in range(waiting.MAX_TRIGGER_FAILURES):
            fail_trigger(store, clear_number=clear)


class LateNotifier(BaseNotifier):
    """Keeps what it was called with, and then does what the test wants."""

    template_fields = ("text",)

    def __init__(self, act: Callable[[int], Any] = lambda _: None) -> None:
        super().__init__()
        self.text = "{{ outcome.reason }}: {{ outcome.not_picked_up | join }}"
        self.act, self.texts = act, []

    def notify(self, context: Any) -> None:
        self.texts.append(self.text)
        assert context["outcome"] == outcome_of(SimpleNamespace(outcome=context["outcome"]))
        self.act(len(self.texts))


class Clock:
    """What the provider takes for now. It can be set forward; the service's stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = timedelta()
        utcnow, clock = timezone.utcnow, schedule.time
        monkeypatch.setattr(timezone, "utcnow", lambda: utcnow() + self.ahead)
        shifted = SimpleNamespace(monotonic=clock.monotonic, time=lambda: clock.time() + self.ahead.total_seconds())
        monkeypatch.setattr(schedule, "time", shifted)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


HOURS, DAYS = (timedelta(hours=1), timedelta(hours=30)), timedelta(days=1)


def test_each_time_notifies_once_and_the_wait_goes_on(wait, sandbox, clock) -> None:
    sandbox.pickup(wait.sent, BOB)
    clock.ahead = timedelta(hours=40)

    def act(count: int) -> None:
        if count == 3:
            sandbox.pickup(wait.sent, ANN)
        else:
            clock.ahead = timedelta(days=4 * count)

    notifier, other = LateNotifier(act), LateNotifier()
    final = wait(notify_after=[*HOURS, 4 * DAYS, -7 * DAYS], notifiers=[notifier, other], timeout=None)
    assert final["status"] == "complete"
    assert (
        notifier.texts
        == other.texts
        == [
            f"It was sent more than 1 day, 6:00:00 ago: {ANN}",
            f"It was sent more than 4 days ago: {ANN}",
            f"It expires in less than 7 days: {ANN}",
        ]
    )


def test_a_notifier_that_fails_ends_no_wait_and_silences_no_other(wait, sandbox, clock, capfd) -> None:
    clock.ahead = 2 * DAYS
    mask_secret("correct-horse-battery")

    def fail(_: int) -> None:
        raise ValueError("refused: correct-horse-battery")

    failing, other = LateNotifier(fail), LateNotifier(lambda _: [sandbox.pickup(wait.sent, one) for one in (ANN, BOB)])
    assert wait(notify_after=DAYS, notifiers=[failing, other], timeout=None)["status"] == "complete"
    assert len(failing.texts) == len(other.texts) == 1
    (warning,) = [line for line in capfd.readouterr().out.splitlines() if "LateNotifier failed" in line]
    assert "is not called again for this; the task continues. Check its arguments" in warning
    assert "ValueError: refused: ***" in warning


def resume(operator: Any, context: Any, event: Any) -> TransferTrigger:
    """The trigger with which the task defers again after an event."""
    with pytest.raises(TaskDeferred) as deferred:
        operator.resume_execution("execute_complete", {"event": event.payload}, context)
    return deferred.value.trigger


def fire(trigger: TransferTrigger) -> Any:
    return asyncio.run(asyncio.wait_for(first_event(trigger), TEST_TIMEOUT))


def test_a_restarted_triggerer_a_retry_and_a_clear_repeat_no_notification(sandbox, sent, clock) -> None:
    store, notifier, clock.ahead = InMemoryStateStore(), LateNotifier(), 2 * DAYS

    def make() -> TransferSensor:
        return sensor(transfer_id=sent, poke_interval=1, notify_after=(DAYS, 3 * DAYS), notifiers=notifier)

    first = trigger_of(make(), context_of(store))
    restarted = TransferTrigger(**json.loads(json.dumps(first.serialize()[1])))
    events = [fire(first), fire(restarted)]
    assert [event.payload["status"] for event in events] == ["late", "late"]
    second = resume(make(), context_of(store), events[0])
    assert (first.deadline, second.notify_after) == (second.deadline, [(3 * DAYS).total_seconds()])
    assert len(notifier.texts) == 1

    for clear in range(2):
        assert trigger_of(make(), context_of(store, clear_number=clear)).notify_after == second.notify_after
        poking = sensor(transfer_id=sent, deferrable=False, notify_after=[DAYS], notifiers=notifier)
        assert not poking.poke(context_of(store, clear_number=clear)).is_done
    assert resume(make(), context_of(store), events[1]).notify_after == second.notify_after
    assert len(notifier.texts) == 1
    assert fire_after_pickup(sandbox, sent, second).payload["status"] == "finished"


def test_a_worker_whose_clock_is_behind_notifies_when_the_triggerer_says_so(sent, clock) -> None:
    store, notifier, clock.ahead = InMemoryStateStore(), LateNotifier(), 2 * DAYS

    def make() -> TransferSensor:
        return sensor(transfer_id=sent, poke_interval=1, notify_after=(DAYS, 3 * DAYS), notifiers=notifier)

    late, clock.ahead = fire(trigger_of(make(), context_of(store))), timedelta()
    assert resume(make(), context_of(store), late).notify_after == [(3 * DAYS).total_seconds()]
    assert notifier.texts == [f"It was sent more than 1 day ago: {ANN}{BOB}"]


def fire_after_pickup(sandbox: Sandbox, sent: str, trigger: TransferTrigger) -> Any:
    for recipient in (ANN, BOB):
        sandbox.pickup(sent, recipient)
    return fire(TransferTrigger(**trigger.serialize()[1]))


def test_another_transfer_of_a_cleared_task_has_its_own_notifications(report, clock) -> None:
    store, notifier, clock.ahead = InMemoryStateStore(), LateNotifier(), 2 * DAYS
    for count in (1, 2):
        sent = send(report, InMemoryStateStore())["id"]
        poking = sensor(transfer_id=sent, deferrable=False, notify_after=DAYS, notifiers=notifier)
        for _ in range(2):
            poking.poke(context_of(store))
        assert len(notifier.texts) == count


def test_a_worker_killed_while_it_notifies_leaves_one_notification_out(sent, clock) -> None:
    store, clock.ahead = InMemoryStateStore(), 2 * DAYS

    def die(_: int) -> None:
        raise ProcessCrashed

    notifier = LateNotifier(die)
    poking = sensor(transfer_id=sent, deferrable=False, notify_after=DAYS, notifiers=notifier)
    with pytest.raises(ProcessCrashed):
        poking.poke(context_of(store))
    poking.poke(context_of(store))
    assert len(notifier.texts) == 1


def test_a_late_transfer_costs_one_read_and_each_trigger_begins_with_one(sandbox, sent, clock) -> None:
    store, notifier = InMemoryStateStore(), LateNotifier()

    def make() -> TransferSensor:
        return sensor(transfer_id=sent, poke_interval=86_400, notify_after=DAYS, notifiers=notifier)

    before = len(sandbox.requests())
    trigger = trigger_of(make(), context_of(store))
    with ThreadPoolExecutor(1) as pool:
        event = pool.submit(fire, trigger)
        eventually(lambda: len(sandbox.requests()) == before + 1)
        clock.ahead = 2 * DAYS
        late = event.result()
    assert len(sandbox.requests()) == before + 2, "who is missing is read at that time"
    again = resume(make(), context_of(store), late)
    assert len(sandbox.requests()) == before + 2, "the worker reads nothing"
    assert len(notifier.texts) == 1
    assert fire_after_pickup(sandbox, sent, again).payload["status"] == "finished"
    assert len(sandbox.requests()) == before + 3


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
def test_the_triggerer_finishes_a_task_only_if_nothing_is_lost(arguments, finishes) -> None:
    assert (
        trigger_of(sensor(finish_in_triggerer=True, **arguments), context_of(InMemoryStateStore())).finish_in_triggerer
        is finishes
    )
    assert not trigger_of(sensor(**arguments), context_of(InMemoryStateStore())).finish_in_triggerer


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
    monkeypatch.setattr(triggers, "_push_xcom", lambda _, key, value: pushed.append((key, value["status"])))
    if end == "complete":
        for recipient in (ANN, BOB):
            sandbox.pickup(sent, recipient)
    else:
        sandbox.cancel(sent)
    trigger = trigger_of(
        sensor(transfer_id=sent, finish_in_triggerer=True, poke_interval=1, **choices), context_of(InMemoryStateStore())
    )
    fired = asyncio.run(asyncio.wait_for(first_shared_event(trigger), TEST_TIMEOUT))
    assert type(fired).__name__ == (event.__name__ if event else "TriggerEvent")
    keys = {TaskSuccessEvent: ["return_value"], TaskSkippedEvent: ["outcome"], None: []}
    assert pushed == [(key, end) for key in keys[event]]


def test_a_result_that_the_triggerer_cannot_store_takes_a_worker(sandbox, sent, monkeypatch) -> None:
    threads = []

    def push(*_: Any) -> None:
        threads.append(threading.current_thread())
        raise OSError("down")

    monkeypatch.setattr(triggers, "_push_xcom", push)
    assert event_after_pickup(sandbox, sent).payload["status"] == "finished"
    assert threads[0] is not threading.main_thread(), "it would block the event loop"


def event_after_pickup(sandbox: Sandbox, sent: str) -> Any:
    """The event of a wait that finishes in the triggerer if it can."""
    for recipient in (ANN, BOB):
        sandbox.pickup(sent, recipient)
    trigger = trigger_of(
        sensor(transfer_id=sent, finish_in_triggerer=True, poke_interval=1), context_of(InMemoryStateStore())
    )
    return asyncio.run(asyncio.wait_for(first_shared_event(trigger), TEST_TIMEOUT))


def test_triggers_of_one_connection_share_a_poll_and_survive_a_restart() -> None:
    one = trigger_of(sensor(), context_of(InMemoryStateStore()))
    kind, kwargs = one.serialize()
    again = TransferTrigger(**kwargs)
    assert kind == "outbound_transfer.triggers.transfer.TransferTrigger"
    assert again.serialize() == one.serialize()
    stored_before = {name: value for name, value in kwargs.items() if name not in ("identity", "salt")}
    assert TransferTrigger(**stored_before).serialize() == one.serialize(), "of a version without these arguments"
    watcher = TransferOutcomeTrigger()
    assert one.shared_stream_key() == again.shared_stream_key() == watcher.shared_stream_key()
    assert one.shared_stream_key() != TransferOutcomeTrigger(outbound_transfer_conn_id="other").shared_stream_key()
    assert TransferOutcomeTrigger(**watcher.serialize()[1]).serialize() == watcher.serialize()


class Watched:
    """An asset's state store."""

    def __init__(self, *, shared: bool = False) -> None:
        self.values: dict[str, Any] = {}
        self.shared = shared

    def get(self, key: str) -> Any:
        if self.shared:
            raise ValueError("Task has 2 concrete inlets and outlets")
        return self.values.get(key)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))


async def ends_told(store: Watched, count: int) -> list[str]:
    """So many ends, as a triggerer has them told: what is known is kept once each event is stored."""
    trigger = TransferOutcomeTrigger(poke_interval=1)
    trigger.asset_state_store = store  # type: ignore[assignment]
    producer = type(trigger).create_shared_stream_producer(trigger.serialize()[1])
    reported: list[str] = []

    async def stream() -> Any:
        async for update, payload in producer.open_stream():
            yield update
            await producer.advance([AdvanceItem(payload, AdvanceOutcome(acked=1, failed=0))])

    async for event in trigger.filter_shared_stream(stream()):
        reported += [f"{one['id']} {one['status']}" for one in event.payload["transfers"]]
        if (len(reported) >= count and store.values) or store.shared:
            return reported
    return reported


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110  # what it waits for happens in another process, or in Airflow
        await asyncio.sleep(0.05)


def test_a_watcher_goes_on_where_it_was(sandbox, report) -> None:
    store = Watched()
    first, second = (send(report, InMemoryStateStore())["id"] for _ in range(2))

    async def scene(ended: str) -> list[str]:
        telling = asyncio.ensure_future(ends_told(store, 1))
        await until(lambda: bool(store.values))
        if ended == first:
            sandbox.cancel(ended)
        return await asyncio.wait_for(telling, TEST_TIMEOUT)

    assert asyncio.run(scene(first)) == [f"{first} canceled"]
    sandbox.cancel(second)  # while nobody watches
    reported = asyncio.run(scene(second))
    assert f"{second} canceled" in reported
    assert set(reported) <= {f"{first} canceled", f"{second} canceled"}


@pytest.fixture
def two_sent(report) -> list[str]:
    return [send(report, InMemoryStateStore())["id"] for _ in range(2)]


def has_begun(sandbox: Sandbox) -> bool:
    """Whether a watcher has read the newest, those that are pending or partial, and the newest once more."""
    return sum((call["method"], call["path"]) == ("GET", "/v1/transfers") for call in sandbox.requests()) >= 4


def test_a_watcher_reports_what_finishes_soon_after_an_event_in_one_event(two_sent, sent, sandbox, monkeypatch) -> None:
    first, second = two_sent
    monkeypatch.setattr(triggers, "MIN_EVENT_INTERVAL", 1_000.0)
    sleep, sleeping, over = asyncio.sleep, asyncio.Event(), asyncio.Event()

    async def watched_sleep(seconds: float) -> None:
        if seconds > 500:
            sleeping.set()
            await over.wait()
        else:
            await sleep(seconds)

    monkeypatch.setattr(triggers, "sleep", watched_sleep)

    async def scene() -> list[set[str]]:
        events = TransferOutcomeTrigger(poke_interval=1).run()
        reporting = asyncio.ensure_future(anext(events))
        await until(lambda: has_begun(sandbox))
        sandbox.cancel(first)
        reported = [await reporting]
        sandbox.cancel(second)
        reporting = asyncio.ensure_future(anext(events))
        await sleeping.wait()
        sandbox.cancel(sent)
        calls = len(sandbox.requests())
        await until(lambda: len(sandbox.requests()) >= calls + 6)
        over.set()
        reported.append(await reporting)
        await events.aclose()
        return [{one["id"] for one in event.payload["transfers"]} for event in reported]

    assert asyncio.run(asyncio.wait_for(scene(), TEST_TIMEOUT)) == [{first}, {second, sent}]


def test_a_watcher_before_airflow_3_3_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(triggers, "HAS_STATE_STORES", False)
    with pytest.raises(ValueError, match=r"needs Airflow 3\.3"):
        TransferOutcomeTrigger()


def test_a_watcher_of_several_assets_watches_all_the_same(sandbox, sent) -> None:
    store = Watched(shared=True)

    async def scene() -> list[str]:
        telling = asyncio.ensure_future(ends_told(store, 1))
        await until(lambda: has_begun(sandbox))
        sandbox.cancel(sent)
        return await asyncio.wait_for(telling, TEST_TIMEOUT)

    assert asyncio.run(scene()) == [f"{sent} canceled"]


@pytest.mark.parametrize("wrong", [[], ["pending"], ["complete", "lost"]])
def test_a_watcher_reports_terminal_statuses_only(wrong) -> None:
    with pytest.raises(ValueError, match="complete, expired, canceled"):
        TransferOutcomeTrigger(outcomes=wrong)


@pytest.mark.parametrize("seconds", ["3601", "86400", "1000000000", "9" * 40])
def test_a_delivery_neither_defers_nor_waits_beyond_its_timeout(sandbox, report, seconds) -> None:
    sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": seconds})
    with pytest.raises(RateLimited):
        send(report, InMemoryStateStore(), deferrable=True)
    assert len(sandbox.requests()) == 0


def test_a_delivery_defers_for_a_wait_within_its_timeout(sandbox, report) -> None:
    sandbox.plan_faults({"kind": "error", "status": 429, "retry_after": "3000"})
    with pytest.raises(TaskDeferred) as deferred:
        send(report, InMemoryStateStore(), deferrable=True)
    left = (deferred.value.trigger.moment - timezone.utcnow()).total_seconds()
    assert 2_900 < left < 3_002
