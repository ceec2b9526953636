"""Runs docker-compose.yaml natively and loses a worker and a triggerer: ``python -m e2e.cluster [--keep]``.

Two Celery workers and two triggerers deliver 100 times through the Dag ``deliver_files`` to recipients who pick up, and
``ingest_event_feed`` lands the feed. A worker is killed while it sends, a triggerer while it waits, each with all that
it has started. Exits with 0 where all was delivered exactly once, every event landed once and no wait was lost.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

from e2e.cluster.cluster import RATE, Cluster
from e2e.cluster.scenario import ClusterScenario
from support.airflow_stack.console import DemoFailed, Reporter, tail
from support.airflow_stack.processes import Interrupted, Processes, Signals


def main() -> int:
    options = _arguments()
    reporter, folder = Reporter(), Path(tempfile.mkdtemp(prefix="cluster-"))
    code = 1
    try:
        with running_cluster(folder, reporter) as cluster:
            reporter.line(cluster.told())
            violations = played(ClusterScenario(cluster, options.deliveries, options.runs, options.rate))
            code = 1 if violations else 0
    except Interrupted as interrupted:
        code = interrupted.exit_code
    except (DemoFailed, httpx.HTTPError) as error:
        reporter.line(f"Not played to the end: {error!r}", "bold red")
        if log := getattr(error, "log", None):
            reporter.line("\n".join(map(str, (*tail(log)[1], tail(log)[0]))))
    if code or options.keep:
        reporter.line(f"Logs: {folder / 'logs'} (containers), {folder / 'volumes' / 'logs'} (tasks)")
    else:
        shutil.rmtree(folder)
    return code


@contextmanager
def running_cluster(folder: Path, reporter: Reporter) -> Iterator[Cluster]:
    """All of it up; stopped at the end, also on Ctrl-C."""
    (folder / "logs").mkdir()
    signals = Signals()
    processes = Processes(folder, signals)
    try:
        with closing(Cluster(folder, processes, reporter)) as cluster:
            cluster.up()
            yield cluster
    finally:
        signals.ignore()
        if left := processes.stop():
            raise RuntimeError(f"Could not stop {', '.join(left)}")


def played(play: ClusterScenario) -> list[str]:
    """Plays it; what was wrong, which is printed with the figures."""
    reporter = play.reporter
    since = reporter.elapsed
    play.begin()
    play.lose_worker()
    play.lose_triggerer()
    play.finish()
    lasted, figures, violations = reporter.elapsed - since, list(play.figures()), list(play.violations())
    reporter.heading("Figures")
    for name, value in [("duration", f"{lasted:.0f} s, after {since:.0f} s of starting"), *figures]:
        reporter.line(f"{name:40} {value}")
    for wrong in violations:
        reporter.line(f"BROKEN: {wrong}", "bold red")
    reporter.line(
        "" if violations else "All delivered exactly once, every event landed once, no wait lost.", "bold green"
    )
    return violations


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=100, metavar="N")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="runs of deliver_files (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=RATE, metavar="N", help="requests a minute that the sandbox allows")
    parser.add_argument("--keep", action="store_true", help="keep the logs although all is well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
