"""Deliver real files with a real Airflow, from disk to warehouse, and check what came of it (`make demo`).

Starts the sandbox and Airflow (API server, scheduler, DAG processor, triggerer) in `.demo/`, runs the DAGs
`deliver_files` and `ingest_event_feed`, lets recipients collect, and reports. Exit code: 0 when every claim of the
report is so, 1 when not, 2 when it cannot begin, 130 on Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path

import httpx
from demo import processes, report
from demo.console import DemoFailed, Teller, tail
from demo.processes import Interrupted, Processes, Signals
from demo.stack import REPOSITORY, Airflow, Stack
from demo.story import Story, make_deliveries

FOLDER = REPOSITORY / ".demo"
STOP = f"{os.path.relpath(sys.executable)} {os.path.relpath(__file__)} --stop"


def main() -> int:
    options = _parser().parse_args()
    return stop() if options.stop else demo(keep=options.keep)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="demo.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end")
    parser.add_argument("--stop", action="store_true", help="stop what an earlier demo left running")
    return parser


def stop() -> int:
    """Stop what an earlier demo left running."""
    teller, leaders = Teller(), processes.recorded(FOLDER)
    if not processes.members(leaders):
        teller.line("No demo is running.")
        return 0
    if left := processes.stop(leaders, processes.record_of(FOLDER)):
        teller.line(f"Could not stop: {', '.join(left)}", "bold red")
        return 1
    teller.line("The demo is stopped.")
    return 0


def demo(*, keep: bool) -> int:
    """Play it; stop everything at the end, however it ends, unless it is to be kept and went well."""
    teller = Teller()
    if processes.members(processes.recorded(FOLDER)):
        teller.line(f"A demo is running in {FOLDER} already. Stop it: {STOP}", "bold red")
        return 2
    signals = Signals()
    started = Processes(FOLDER, signals)
    code = 1
    try:
        Stack.wipe(FOLDER)
        with closing(Stack(FOLDER, started, teller)) as stack:
            code = play(stack, started, teller, keep=keep)
    except Interrupted as interrupted:
        teller.say(f"{interrupted}: stopping", "bold yellow")
        code = interrupted.exit_code
    except (DemoFailed, httpx.HTTPError, OSError) as error:
        _tell_failure(error, teller)
    finally:
        signals.ignore()
        if not (keep and code == 0):
            code = _stop_all(started, teller) or code
    return code


def play(stack: Stack, started: Processes, teller: Teller, *, keep: bool) -> int:
    sandbox = stack.start_sandbox()
    stack.begin_migration()
    deliveries = make_deliveries(FOLDER / "outbox", teller)
    airflow = stack.start_airflow()
    stack.wait_for_dags(airflow, "deliver_files", "ingest_event_feed")
    ready = teller.elapsed
    story = Story(stack, sandbox, airflow, started, teller)
    run_id, seen = story.deliver(deliveries)
    story.ingest()
    done = teller.elapsed
    teller.say("Reading everything back")
    facts = report.gather(deliveries, seen, run_id, sandbox, airflow, stack.warehouse)
    wrong = report.tell(facts, teller)
    teller.line(f"\nStarted in {ready:.0f} s, delivered and ingested in {done - ready:.0f} s, with the real Airflow.")
    _tell_places(stack, airflow, sandbox.base_url, teller, keep=keep)
    if wrong:
        raise DemoFailed(f"{len(wrong)} claim(s) are not so: {'; '.join(wrong)}", stack.airflow_logs)
    teller.line("\nAll of it is so.", "bold green")
    return 0


def _tell_places(stack: Stack, airflow: Airflow, service: str, teller: Teller, *, keep: bool) -> None:
    teller.heading("Where to look")
    teller.line(f"  warehouse (SQLite)    {stack.warehouse}")
    teller.line(f"  logs of the tasks     {stack.airflow_logs}")
    teller.line(f"  logs of the processes {FOLDER / 'logs'}")
    if keep:
        teller.line(f"  Airflow, no login     {airflow.url}")
        teller.line(f"  sandbox               {service} (keys: {FOLDER / 'sandbox.json'})")
        teller.line(f"  It all goes on running. To stop it: {STOP}", "bold")
    else:
        teller.line("  `make demo KEEP=1` leaves Airflow and the sandbox running, to look at in a browser.")


def _tell_failure(error: Exception, teller: Teller) -> None:
    log: Path | None = getattr(error, "log", None)
    if log:
        newest, lines = tail(log)
        teller.line(f"\nThe end of {newest}:", "dim")
        for line in lines:
            teller.line(f"  | {line}", "dim")
    teller.line(f"\nThe demo failed: {error}", "bold red")
    teller.line(f"Logs: {FOLDER / 'logs'} and {FOLDER / 'airflow' / 'logs'}")


def _stop_all(started: Processes, teller: Teller) -> int:
    if left := started.stop():
        teller.line(f"Could not stop: {', '.join(left)}", "bold red")
        return 1
    teller.say("Everything that was started is stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
