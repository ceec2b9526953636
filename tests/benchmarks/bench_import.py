"""What the provider adds to ``import airflow.sdk`` in a DAG file: milliseconds, the median of fresh interpreters.

PYTHONPATH=tests .venv/bin/python -m benchmarks.bench_import [RUNS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

LIMIT_MS = 60

MEASURE = """
import time
import airflow.sdk
start = time.perf_counter()
import outbound_transfer.operators.transfer
import outbound_transfer.sensors.transfer
import outbound_transfer.transfers.event_feed_to_sql
print((time.perf_counter() - start) * 1000)
"""


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"AIRFLOW_HOME": home, "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
        times = [
            float(subprocess.check_output([sys.executable, "-c", MEASURE], env=environment, text=True).split()[-1])
            for _ in range(runs)
        ]
    median = statistics.median(times)
    spread = f"median of {runs}: {min(times):.0f} to {max(times):.0f}"
    print(f"import: {median:.0f} ms added to `import airflow.sdk` ({spread}; claim: under {LIMIT_MS})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
