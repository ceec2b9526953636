"""Many waits in a real Airflow whose triggerer is killed: the small form of `make bench-wait`."""

from __future__ import annotations

from collections import Counter

from benchmarks.bench_wait import WaitStack, ours, prepare
from kills.stack import Teller, running_stack

COUNT = 24


def test_waits_survive_a_killed_triggerer_at_next_to_no_cost(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(WaitStack, "interval", 4.0)
    teller = Teller()
    with running_stack(tmp_path / "waits", teller, 1, kind=WaitStack) as stack:
        stack.wait_for_dags(stack.airflow, "waits")
        sent = prepare(stack, COUNT)
        result = ours(stack, sent, 12.0, teller.say, stack.restart_triggerer)
        rows = result.waits.rows()
        finals = [stack.airflow.xcom("waits", result.waits.run_id, "wait", index) for index in range(COUNT)]

    assert Counter(row["state"] for row in rows) == {"success": COUNT}
    assert {row["try_number"] for row in rows} == {1}
    # Of ten, one expired and one was canceled; what the triggerer has pushed is what a worker would have.
    assert Counter(final["status"] for final in finals) == {"complete": 18, "expired": 3, "canceled": 3}
    assert max(result.waits.running) == 0, "no worker held a slot, and none was started to end a wait"
    assert Counter(call["status"] for call in result.made) == {200: len(result.made)}
    reads = sum(call["path"] != "/v1/transfers" for call in result.made)
    # A look reads at most as many as it misses, each missed one once; a killed triggerer may have to look again.
    assert reads <= 2 * COUNT
