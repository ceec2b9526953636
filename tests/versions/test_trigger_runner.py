"""The shared poll under the trigger runner of this version of Airflow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.executors.workloads import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.sdk.execution_time import task_runner

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.triggers.transfer import TransferTrigger
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import TaskDeferred
from support.provider import Upload, build_new_transfer

pytestmark = pytest.mark.e2e

TRIGGERS = 1_000
TIMEOUT_SECONDS = 60.0


class Triggerer:
    """Airflow's trigger runner, without the supervisor that a triggerer connects it to."""

    def __init__(self) -> None:
        self.runner = TriggerRunner()

    async def start(self, numbers: range, transfer_id: str) -> None:
        deadline = datetime.now(UTC) + timedelta(hours=1)
        classpath, arguments = TransferTrigger(
            transfer_id, "outbound_transfer_default", 0.2, deadline.isoformat()
        ).serialize()
        kwargs = Trigger.encrypt_kwargs(arguments)
        self.runner.to_create.extend(
            RunTrigger(id=number, ti=None, classpath=classpath, encrypted_kwargs=kwargs) for number in numbers
        )
        await self.runner.create_triggers()

    async def cancel(self, numbers: range) -> None:
        self.runner.to_cancel.extend(numbers)
        await self.runner.cancel_triggers()

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < deadline
            await self.runner.cleanup_finished_triggers()
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await self.cancel(range(2 * TRIGGERS))
        await self.until(lambda: not self.runner.triggers)


@pytest.fixture
def transfer_id(hook: OutboundTransferHook) -> str:
    draft = hook.create_transfer(build_new_transfer(subject="Report", recipients=["ann@example.com"]))
    hook.attach_file(draft.id, Upload("a.csv", 1, lambda: iter([b"a"])))
    return hook.send_transfer(draft.id).id


def test_triggers_share_one_poll_and_all_fire(sandbox: Sandbox, transfer_id: str) -> None:
    def polls() -> int:
        return len(sandbox.requests()) - sent

    async def play() -> None:
        triggerer = Triggerer()
        await triggerer.start(range(TRIGGERS), transfer_id)
        await triggerer.until(lambda: polls() > 1)
        await triggerer.cancel(range(TRIGGERS // 2))
        await triggerer.until(lambda: len(triggerer.runner.triggers) == TRIGGERS // 2)
        assert polls() < TRIGGERS / 10

        await asyncio.to_thread(sandbox.pickup, transfer_id, "ann@example.com")
        await triggerer.until(lambda: not triggerer.runner.triggers)
        assert len(triggerer.runner.events) == TRIGGERS - TRIGGERS // 2
        assert not triggerer.runner.failed_triggers

        await triggerer.start(range(TRIGGERS, TRIGGERS + 1), transfer_id)
        await triggerer.until(lambda: not triggerer.runner.triggers)

    sandbox.patch_account(requests_per_window=100_000)
    sent = len(sandbox.requests())
    asyncio.run(play())


def test_a_deferred_task_waits_in_its_own_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow asks the trigger whether it may, since 3.2, and by another name since 3.4."""
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    trigger = TransferTrigger("tr_1", "outbound_transfer_default", 60, datetime.now(UTC).isoformat())
    ti: Any = SimpleNamespace(dag_id="dag", run_id="run", task_id="task", task=SimpleNamespace(queue="reports"))
    log: Any = logging.getLogger(__name__)
    deferred, _ = task_runner._defer_task(TaskDeferred(trigger=trigger, method_name="resume"), ti, log)
    assert getattr(deferred, "queue", "reports") == "reports"
