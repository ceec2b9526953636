"""Random schedules of a DAG run's tasks against the ledger, in small; 2,000 of them: ``make machine``."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.machine import schedules
from faults.matrix import Bench

EXAMPLES = 40


@pytest.mark.parametrize("number", range(4))
def test_no_schedule_breaks_a_promise(tmp_path: Path, number: int) -> None:
    with Bench(tmp_path) as bench:
        assert schedules(bench, EXAMPLES, number).task_runs
