"""Many deferred waits in a real Airflow, and what they cost: for a benchmark and for a test."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outbound_transfer_sandbox.testing import Sandbox
from support import transfers
from support.airflow_stack.many_sandboxes import ManySandboxesStack
from support.airflow_stack.processes import members
from support.repository import TESTS

RECIPIENT = "ann@example.com"


class WaitStack(ManySandboxesStack):
    """A real Airflow with one sandbox, and the Dags of ``wait_dags``."""

    interval = 60.0
    gateway = ""

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(TESTS / "benchmarks" / "wait_dags"),
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "10000",
            "AIRFLOW__CORE__MAX_MAP_LENGTH": "10000",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__TRIGGERER__CAPACITY": "10000",
            # How soon a triggerer that was killed is missed.
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            "BENCH_WAIT_FOLDER": str(self.folder),
            "BENCH_WAIT_INTERVAL": str(self.interval),
            "PYTHONPATH": str(TESTS),
        }

    def connections(self) -> dict[str, str]:
        peer = {"conn_type": "http", "host": self.gateway}
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": super().connections()["AIRFLOW_CONN_SANDBOX_0"],
            "AIRFLOW_CONN_PEER": json.dumps(peer),
        }

    def triggerer_memory(self) -> int:
        # Of its processes, what no other process shares.
        leader = next(leader for leader in self.processes.leaders if leader.name == "triggerer")
        return sum(process.memory_full_info().uss for process in members([leader]))


@dataclass
class Waiting:
    """One Dag's waits, from their start to their end."""

    stack: WaitStack
    dag_id: str
    run_id: str = ""
    ended: dict[str, float] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        self.run_id = self.stack.airflow.trigger(self.dag_id, {})

    def look(self) -> Counter[str]:
        rows = self.rows()
        self.states = Counter(str(row["state"]) for row in rows)
        self.running.append(self.states["running"])
        return self.states

    def rows(self) -> list[dict[str, Any]]:
        path = f"dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances"
        found: list[dict[str, Any]] = []
        while True:
            page = self.stack.airflow.call("GET", path, limit=1000, offset=len(found), task_id="wait")
            found += page["task_instances"]
            if not page["task_instances"]:
                return found

    def until(self, done: Callable[[Counter[str]], bool], timeout: float, tell: Callable[[str], None]) -> None:
        until, told = time.monotonic() + timeout, ""
        while not done(self.look()) and time.monotonic() < until:
            if (now := ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))) != told:
                tell(told := now)
            time.sleep(5)


def spread(sandbox: Sandbox, sent: list[str], seconds: float, ended: dict[str, float]) -> None:
    """End all transfers, evenly over so many seconds: of ten, eight are collected, one expires, one is canceled."""
    began, order = time.time(), random.Random(7).sample(sent, len(sent))
    moments = {one: began + seconds * (number + 1) / len(order) for number, one in enumerate(order)}
    for one in order[::10]:
        sandbox.set_expiry(one, moments[one] - time.time())
    for number, one in enumerate(order):
        time.sleep(max(moments[one] - time.time(), 0))
        if number % 10 == 1:
            sandbox.cancel(one)
        elif number % 10:
            sandbox.pickup(one, RECIPIENT)
        ended[one] = time.time()


@dataclass
class Result:
    """What so many waits came to."""

    waits: Waiting
    count: int
    seconds: float
    made: list[dict[str, Any]]
    delays: list[float]
    memory: float = 0.0


def ours(
    stack: WaitStack, sent: list[str], seconds: float, tell: Callable[[str], None], meanwhile: Callable[[], None]
) -> Result:
    """Wait for all with `TransferSensor`; ``meanwhile`` happens when all are deferred, before any ends."""
    sandbox, count = stack.sandboxes[0], len(sent)
    before_memory, before_calls, began = stack.triggerer_memory(), len(sandbox.requests()), time.time()
    waits = Waiting(stack, "waits")
    waits.start()
    waits.until(lambda states: states["deferred"] + states["failed"] == count, 1_800, tell)
    tell(f"{count} waits deferred after {time.time() - began:.0f} s")
    time.sleep(2 * stack.interval)
    memory = stack.triggerer_memory() - before_memory
    meanwhile()
    waits.running.clear()
    with ending(sandbox, sent, seconds, waits.ended):
        waits.until(lambda states: states["deferred"] == 0, seconds + 600, tell)
    waits.until(lambda states: states["success"] + states["failed"] == count, 1_800, tell)
    made = sandbox.requests()[before_calls:]
    return Result(waits, count, time.time() - began, made, sorted(_delays(waits, sent)), memory)


def memory_of(stack: WaitStack, dag_id: str, count: int) -> float:
    """The bytes by which the triggerer grows for each of so many waits, beside what the first one brings along."""
    for number in (1, count):
        prepare(stack, number)
        before, waits = stack.triggerer_memory(), Waiting(stack, dag_id)
        waits.start()
        waits.until(lambda states, number=number: states["deferred"] == number, 1_800, lambda _: None)  # type: ignore[misc]
        time.sleep(2 * stack.interval)
        grown = (stack.triggerer_memory() - before) / number
    return grown


@contextmanager
def ending(sandbox: Sandbox, sent: list[str], seconds: float, ended: dict[str, float]) -> Iterator[None]:
    thread = threading.Thread(target=spread, args=(sandbox, sent, seconds, ended))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _delays(waits: Waiting, sent: list[str]) -> Iterator[float]:
    for row in waits.rows():
        if row["state"] == "success":
            yield datetime.fromisoformat(row["end_date"]).timestamp() - waits.ended[sent[row["map_index"]]]


def prepare(stack: WaitStack, count: int) -> list[str]:
    sent = transfers.send(stack.sandboxes[0], count, RECIPIENT)
    stack.sandboxes[0].patch_account(requests_per_window=60, outstanding_transfer_limit=10**6)
    (stack.folder / "transfers.json").write_text(json.dumps(sent))
    return sent
