"""Each benchmark in a short form: that it runs, not what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import TESTS

SHORT_FORMS = {
    "bench_cluster": "--waits 60 --triggerers 2 --senders 2 --interval 60 --settle 5 --seconds 10 --ends 20 --late 5",
    "bench_import": "1",
    "bench_ingest": "--events 2000 --pages 2",
    "bench_page": "--deliveries 500 --rounds 1",
    "bench_query": "--rows 2000",
    "bench_row": "--rounds 1",
    "bench_upload": "--mib 1",
    "bench_uploads": "--mb 1",
    "bench_wait": "--simulated 100 --waits 20 --interval 2 --seconds 10 --peer-seconds 10 --idle 5",
}


def test_every_benchmark_has_a_short_form() -> None:
    assert sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py")) == sorted(SHORT_FORMS)


@pytest.mark.parametrize("name", SHORT_FORMS)
def test_a_benchmark_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    command = [sys.executable, "-m", f"benchmarks.{name}", *SHORT_FORMS[name].split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
