"""Runs docker-compose.yaml natively and loses a worker and a triggerer: ``python tests/cluster/run.py [--keep]``.

Two Celery workers and two triggerers deliver 100 times through the DAG ``deliver_files`` to recipients who pick up, and
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster.cluster import Cluster
from cluster.play import Play

from demo.console import DemoFailed, Teller, tail  # isort: skip  # cluster.cluster knows the way to it
from demo.processes import Interrupted, Processes, Signals  # isort: skip


def main() -> int:
    options = _arguments()
    teller, folder = Teller(), Path(tempfile.mkdtemp(prefix="cluster-"))
    code = 1
    try:
        with running_cluster(folder, teller) as cluster:
            teller.line(cluster.told())
            wrongs = played(Play(cluster, options.deliveries, options.runs, options.rate))
            code = 1 if wrongs else 0
    except Interrupted as interrupted:
        code = interrupted.exit_code
    except (DemoFailed, httpx.HTTPError) as error:
        teller.line(f"Not played to the end: {error!r}", "bold red")
        if log := getattr(error, "log", None):
            teller.line("\n".join(map(str, (*tail(log)[1], tail(log)[0]))))
    if code or options.keep:
        teller.line(f"Logs: {folder / 'logs'} (containers), {folder / 'volumes' / 'logs'} (tasks)")
    else:
        shutil.rmtree(folder)
    return code


@contextmanager
def running_cluster(folder: Path, teller: Teller) -> Iterator[Cluster]:
    """All of it up; stopped at the end, also on Ctrl-C."""
    (folder / "logs").mkdir()
    signals = Signals()
    processes = Processes(folder, signals)
    try:
        with closing(Cluster(folder, processes, teller)) as cluster:
            cluster.up()
            yield cluster
    finally:
        signals.ignore()
        if left := processes.stop():
            raise RuntimeError(f"Could not stop {', '.join(left)}")


def played(play: Play) -> list[str]:
    """Plays it; what was wrong, which is printed with the figures."""
    teller = play.teller
    since = teller.elapsed
    play.begin()
    play.lose_worker()
    play.lose_triggerer()
    play.finish()
    lasted, figures, wrongs = teller.elapsed - since, list(play.figures()), list(play.wrongs())
    teller.heading("Figures")
    for name, value in [("duration", f"{lasted:.0f} s, after {since:.0f} s of starting"), *figures]:
        teller.line(f"{name:40} {value}")
    for wrong in wrongs:
        teller.line(f"BROKEN: {wrong}", "bold red")
    teller.line("" if wrongs else "All delivered exactly once, every event landed once, no wait lost.", "bold green")
    return wrongs


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=100, metavar="N")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="runs of deliver_files (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=300, metavar="N", help="requests a minute that the sandbox allows")
    parser.add_argument("--keep", action="store_true", help="keep the logs although all is well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
