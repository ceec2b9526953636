"""Many waits in a real Airflow whose triggerer is killed: the small form of `make bench-wait`."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from support.airflow_names import HAS_STATE_STORES
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import running_stack
from support.airflow_stack.waiters import WaitStack, ours, prepare
from support.deliveries_table import settings

pytestmark = pytest.mark.e2e

COUNT = 24


class WatchingStack(WaitStack):
    """With a DAG that is scheduled on the ends of transfers, on the same poll as the waits."""

    interval = 4.0

    def settings(self) -> dict[str, str]:
        watches = {"WATCH_INTERVAL": str(self.interval)} if HAS_STATE_STORES else {}
        return super().settings() | watches | settings("state")

    def connections(self) -> dict[str, str]:
        return super().connections() | {"AIRFLOW_CONN_STATE": self.database.airflow_connection}

    def restart_triggerer_once_it_watches(self) -> None:
        """Only the watcher's poll lists all statuses. Airflow starts it when it has parsed the DAG again."""
        until = time.monotonic() + 90
        while HAS_STATE_STORES and not any("status=all" in call["query"] for call in self.sandboxes[0].requests()):
            assert time.monotonic() < until
            time.sleep(0.5)
        time.sleep(2 * self.interval)  # its state is stored
        self.restart_triggerer()

    def told(self, count: int) -> list[str]:
        """The ends that the DAG's runs were woken by, as soon as there are so many."""
        told: list[str] = []
        until = time.monotonic() + 90
        while len(told) < count and time.monotonic() < until:
            time.sleep(1)
            runs = [run["dag_run_id"] for run in self.airflow.runs("outcomes") if run["state"] == "success"]
            told = [end for run in runs for end in self.airflow.xcom("outcomes", run, "told")]
        return told


def test_waits_survive_a_killed_triggerer_at_next_to_no_cost(tmp_path) -> None:
    reporter = Reporter()
    with running_stack(tmp_path / "waits", reporter, 1, kind=WatchingStack) as stack:
        stack.wait_for_dags(stack.airflow, "waits", *(["outcomes"] if HAS_STATE_STORES else []))
        sent = prepare(stack, COUNT)
        result = ours(stack, sent, 12.0, reporter.say, stack.restart_triggerer_once_it_watches)
        rows = result.waits.rows()
        finals = [stack.airflow.xcom("waits", result.waits.run_id, "wait", index) for index in range(COUNT)]

        told = stack.told(COUNT) if HAS_STATE_STORES else None

    ends = sorted(f"{final['id']} {final['status']}" for final in finals)
    assert told is None or sorted(told) == ends, "each end once"
    assert Counter(row["state"] for row in rows) == {"success": COUNT}
    assert {row["try_number"] for row in rows} == {1}
    # Of ten, one expired and one was canceled; what the triggerer has pushed is what a worker would have.
    assert Counter(final["status"] for final in finals) == {"complete": 18, "expired": 3, "canceled": 3}
    assert max(result.waits.running) == 0, "no worker held a slot, and none was started to end a wait"
    assert Counter(call["status"] for call in result.made) == {200: len(result.made)}
    reads = sum(call["path"] != "/v1/transfers" for call in result.made)
    # A look reads what it misses, each once; a killed triggerer may have to look again.
    assert reads <= 2 * COUNT
