"""Many waits in a real Airflow whose triggerer is killed: the small form of `make bench-wait`."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.waiters import WaitStack, ours, prepare
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import running_stack

pytestmark = pytest.mark.e2e

COUNT = 24


class ShortWaitStack(WaitStack):
    interval = 4.0


def test_waits_survive_a_killed_triggerer_at_next_to_no_cost(tmp_path) -> None:
    reporter = Reporter()
    with running_stack(tmp_path / "waits", reporter, 1, kind=ShortWaitStack) as stack:
        stack.wait_for_dags(stack.airflow, "waits")
        sent = prepare(stack, COUNT)
        result = ours(stack, sent, 12.0, reporter.say, stack.restart_triggerer)
        rows = result.waits.rows()
        finals = [stack.airflow.xcom("waits", result.waits.run_id, "wait", index) for index in range(COUNT)]

    assert Counter(row["state"] for row in rows) == {"success": COUNT}
    assert {row["try_number"] for row in rows} == {1}
    # Of ten, one expired and one was canceled; what the triggerer has pushed is what a worker would have.
    assert Counter(final["status"] for final in finals) == {"complete": 18, "expired": 3, "canceled": 3}
    assert max(result.waits.running) == 0, "no worker held a slot, and none was started to end a wait"
    assert Counter(call["status"] for call in result.made) == {200: len(result.made)}
    reads = sum(call["path"] != "/v1/transfers" for call in result.made)
    # A look reads what it misses, each once; a killed triggerer may have to look again.
    assert reads <= 2 * COUNT
