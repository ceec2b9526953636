"""Waits under the trigger runner of this version of Airflow."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner

from outbound_transfer.triggers.transfer import TransferTrigger
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support import transfers
from support.airflow_names import TaskDeferred
from support.triggers import Triggerer

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("connection")]

TRIGGERS = 1_000
TIMEOUT_SECONDS = 60.0


def triggers(transfer_id: str, count: int = 1, conn_id: str = "outbound_transfer_default") -> list[TransferTrigger]:
    deadline = datetime.now(UTC) + timedelta(hours=1)
    return [TransferTrigger(transfer_id, conn_id, 1.0, deadline.isoformat(), {}) for _ in range(count)]


async def until(triggerer: Triggerer, condition: Callable[[], Any]) -> None:
    await asyncio.wait_for(triggerer.until(condition, 0.1), TIMEOUT_SECONDS)


def polls(sandbox: Sandbox) -> int:
    return sum(call["method"] == "GET" for call in sandbox.requests())


def threads_that_poll() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("outbound-transfer-poll")]


def test_triggers_share_one_poll_and_all_fire(sandbox: Sandbox) -> None:
    (sent,) = transfers.send(sandbox)

    async def play() -> None:
        triggerer, began = Triggerer(), time.monotonic()
        numbers = await triggerer.start(*triggers(sent, TRIGGERS))
        await until(triggerer, lambda: polls(sandbox) > 1)
        await triggerer.cancel(*numbers[::2])
        await until(triggerer, lambda: len(triggerer.runner.triggers) == TRIGGERS // 2)
        await asyncio.to_thread(transfers.pick_up, sandbox, sent)
        await until(triggerer, lambda: len(triggerer.events) == TRIGGERS // 2)
        assert not any(triggerer.failed.values())
        assert polls(sandbox) <= time.monotonic() - began + 2

        (late,) = await triggerer.start(*triggers(sent))
        await until(triggerer, lambda: late in triggerer.events)
        await triggerer.stop()

    sandbox.patch_account(requests_per_window=100_000)
    asyncio.run(play())


def test_a_connection_that_must_wait_holds_up_no_other_and_ends_with_its_waits(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sent,) = transfers.send(sandbox)
    with running_sandbox() as other:
        monkeypatch.setenv("AIRFLOW_CONN_REFUSED", other.airflow_connection())
        (refused,) = transfers.send(other)
        other.plan_faults({"kind": "error", "status": 429, "retry_after": "60"})

        async def play() -> None:
            triggerer, began = Triggerer(), time.monotonic()
            (waiting,) = await triggerer.start(*triggers(refused, conn_id="refused"))
            await until(triggerer, lambda: other.faults()[0]["state"] == "triggered")
            good = await triggerer.start(*triggers(sent, 20))
            await until(triggerer, lambda: polls(sandbox))
            await asyncio.to_thread(transfers.pick_up, sandbox, sent)
            await until(triggerer, lambda: all(one in triggerer.events for one in good))
            assert waiting not in triggerer.events
            assert threads_that_poll(), "it waits for the time that the service names"
            await triggerer.stop()
            await until(triggerer, lambda: not threads_that_poll())
            assert time.monotonic() - began < TIMEOUT_SECONDS
            assert polls(other) == 0, "the service was asked before the time that it named"

        asyncio.run(play())


def test_a_deferred_task_waits_in_its_own_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow asks the trigger whether it may, since 3.2, and by another name since 3.4."""
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    trigger = TransferTrigger("tr_1", "outbound_transfer_default", 60, datetime.now(UTC).isoformat(), {})
    ti: Any = SimpleNamespace(dag_id="dag", run_id="run", task_id="task", task=SimpleNamespace(queue="reports"))
    log: Any = logging.getLogger(__name__)
    deferred, _ = task_runner._defer_task(TaskDeferred(trigger=trigger, method_name="resume"), ti, log)
    assert getattr(deferred, "queue", "reports") == "reports"
