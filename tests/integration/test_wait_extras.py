"""What a wait also does: receipts, notifications of late transfers, and an end without a worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowException, BaseNotifier, mask_secret
from support.tasks import ProcessCrashed
from support.transfers import ANN, BOB, pick_up
from support.triggers import first_shared_event
from support.waiting_tasks import DAY, MODES, Scene, WaitingTask, trigger_of

DAYS = timedelta(days=1)


@pytest.fixture
def scene(sandbox: Sandbox, connection: str) -> Iterator[Scene]:
    scene = Scene(sandbox)
    with scene.time.running():
        yield scene


# ------------------------------------------------------------------------------------------------------------ receipts


@pytest.mark.parametrize("end", ["complete", "accepted", "expired", "skipped", "timed out"])
@pytest.mark.parametrize("deferrable", [False, True])
def test_the_receipt_is_written_when_the_wait_is_over(scene: Scene, tmp_path: Path, end: str, deferrable: bool) -> None:
    (tmp_path / "report.csv").write_bytes(b"a,b\n")
    arguments = {
        "accept_partial": end == "accepted",
        "on_expired": "skip" if end == "skipped" else "fail",
        "timeout": 600.0,
        "finish_in_triggerer": True,
        "receipt": str(tmp_path / "receipts/{transfer_id}.json"),
        "deferrable": deferrable,
    }
    task = WaitingTask(
        lambda: DeliverFilesOperator(
            task_id="deliver", subject="Report", recipients=[ANN, BOB], files=str(tmp_path / "report.csv"), wait=True,
            poke_interval=20.0, **arguments,
        ),
        scene.time,
        task_id="deliver",
    )  # fmt: skip

    def act() -> None:
        sent = scene.sandbox.assert_sent_once()
        pick_up(scene.sandbox, sent, BOB, *([ANN] if end == "complete" else []))
        if end in ("expired", "skipped"):
            scene.sandbox.set_expiry(sent, 60)

    scene.time.after(90, act)
    with nullcontext() if end in ("complete", "accepted") else pytest.raises(AirflowException):
        task.run()

    sent = scene.sandbox.assert_sent_once()
    (path,) = (tmp_path / "receipts").iterdir()
    receipt = json.loads(path.read_text())
    assert path.name == f"{sent}.json"
    status = {"complete": "complete", "expired": "expired", "skipped": "expired"}.get(end, "partial")
    assert receipt["transfer"]["status"] == status
    picked_up = {one["email"]: bool(one["picked_up_at"]) for one in receipt["recipients"]}
    assert picked_up == {ANN: end == "complete", BOB: True}
    (file,) = receipt["files"]
    assert (file["name"], file["size"]) == ("report.csv", 4)


# --------------------------------------------------------------------------------------------- late transfers: notify


class LateNotifier(BaseNotifier):
    """Keeps what it was called with, and then does what the test wants."""

    template_fields = ("text",)

    def __init__(self, act: Callable[[int], Any] = lambda _: None) -> None:
        super().__init__()
        self.text = "{{ outcome.reason }}: {{ outcome.not_picked_up | join }}"
        self.act = act
        self.texts: list[str] = []

    def notify(self, context: Any) -> None:
        self.texts.append(self.text)
        self.act(len(self.texts))


@pytest.fixture(params=MODES)
def late(request: pytest.FixtureRequest, scene: Scene) -> Callable[..., WaitingTask]:
    """Make a sensor's task of a transfer that was sent two days ago."""
    (sent,) = scene.send(1, ANN, BOB)
    scene.time.skip(2 * DAY)

    def make(**arguments: Any) -> WaitingTask:
        return scene.wait(sent, **MODES[request.param], **({"timeout": 9 * DAY} | arguments))

    make.sent = sent  # type: ignore[attr-defined]
    return make


def test_each_time_notifies_once_and_the_wait_goes_on(scene: Scene, late: Any) -> None:
    pick_up(scene.sandbox, late.sent, BOB)
    after = [timedelta(hours=1), timedelta(hours=30), 4 * DAYS, -7 * DAYS]
    notifier, other = LateNotifier(lambda count: act(count)), LateNotifier()

    def act(count: int) -> None:
        if count == 3:
            scene.time.after(60, lambda: pick_up(scene.sandbox, late.sent, ANN))
        else:
            scene.time.skip((2 if count == 1 else 4) * DAY)

    final = late(notify_after=after, notifiers=[notifier, other]).run()
    assert final["status"] == "complete"
    assert notifier.texts == other.texts
    assert notifier.texts == [
        f"It was sent more than 1 day, 6:00:00 ago: {ANN}",
        f"It was sent more than 4 days ago: {ANN}",
        f"It expires in less than 7 days: {ANN}",
    ]


def test_a_notifier_that_fails_ends_no_wait_and_silences_no_other(scene: Scene, late: Any, capfd: Any) -> None:
    mask_secret("correct-horse-battery")

    def fail(_: int) -> None:
        raise ValueError("refused: correct-horse-battery")

    failing = LateNotifier(fail)
    other = LateNotifier(lambda _: scene.time.after(60, lambda: pick_up(scene.sandbox, late.sent, ANN, BOB)))
    assert late(notify_after=DAYS, notifiers=[failing, other]).run()["status"] == "complete"
    assert len(failing.texts) == len(other.texts) == 1
    (warning,) = [line for line in capfd.readouterr().out.splitlines() if "LateNotifier failed" in line]
    assert "ValueError: refused: ***" in warning


def test_a_worker_that_is_killed_while_it_notifies_leaves_one_notification_out(scene: Scene, late: Any) -> None:
    def die(_: int) -> None:
        raise ProcessCrashed

    notifier = LateNotifier(die)
    task = late(notify_after=DAYS, notifiers=notifier)
    task.retries = task.max_tries = 1
    scene.time.after(600, lambda: pick_up(scene.sandbox, late.sent, ANN, BOB))
    assert task.run()["status"] == "complete"
    assert len(notifier.texts) == 1


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
    assert trigger_of(finish_in_triggerer=True, **arguments).finish_in_triggerer is finishes
    assert not trigger_of(**arguments).finish_in_triggerer


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
    trigger = trigger_of(transfer_id=sent, finish_in_triggerer=True, poke_interval=10, **choices)
    return type(scene.time.run(first_shared_event(trigger, ti=TI))).__name__
