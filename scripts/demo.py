"""Deliver real files with a real Airflow, from disk to warehouse, and check what came of it (`make demo`).

Starts the sandbox and Airflow (API server, scheduler, Dag processor, triggerer) in `.demo/`, runs the Dags
`deliver_files`, `ingest_event_feed` and `ingest_transfers`, lets recipients collect, and reports. Exit code: 0 when
every claim of the report is so, 1 when not, 2 when it cannot begin, 130 on Ctrl-C.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import httpx
from demo import report
from demo.scenario import DemoScenario, make_deliveries

from support.airflow_stack import processes
from support.airflow_stack.console import DemoFailed, Reporter, tail
from support.airflow_stack.processes import Interrupted, Processes, Signals
from support.airflow_stack.stack import REPOSITORY, Airflow, Stack

FOLDER = REPOSITORY / ".demo"
STOP = "make demo-stop"

#: Deadlines are in `airflow.sdk` from Airflow 3.2 on.
WITH_DEADLINE = "deliver_with_deadline.py"


class DemoStack(Stack):
    """The stack, with those Dags of `dags/` that this version of Airflow can run."""

    def settings(self) -> dict[str, str]:
        is_older = tuple(map(int, version("apache-airflow").split(".")[:2])) < (3, 2)
        unknown = (WITH_DEADLINE,) if is_older else ()
        dags = shutil.copytree(REPOSITORY / "dags", self.folder / "dags", ignore=shutil.ignore_patterns(*unknown))
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID": "outbound_transfer_warehouse",
        }


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
    reporter, leaders = Reporter(), processes.recorded(FOLDER)
    if not processes.members(leaders):
        reporter.line("No demo is running.")
        return 0
    if left := processes.stop(leaders, processes.record_of(FOLDER)):
        reporter.line(f"Could not stop: {', '.join(left)}", "bold red")
        return 1
    reporter.line("The demo is stopped.")
    return 0


def demo(*, keep: bool) -> int:
    """Play it; stop everything at the end, however it ends, unless it is to be kept and went well."""
    reporter = Reporter()
    if processes.members(processes.recorded(FOLDER)):
        reporter.line(f"A demo is running in {FOLDER} already. Stop it: {STOP}", "bold red")
        return 2
    signals = Signals()
    started = Processes(FOLDER, signals)
    code = 1
    try:
        Stack.wipe(FOLDER)
        with closing(DemoStack(FOLDER, started, reporter)) as stack:
            code = play(stack, started, reporter, keep=keep)
    except Interrupted as interrupted:
        reporter.say(f"{interrupted}: stopping", "bold yellow")
        code = interrupted.exit_code
    except (DemoFailed, httpx.HTTPError, OSError) as error:
        _print_failure(error, reporter)
    finally:
        signals.ignore()
        if not (keep and code == 0):
            code = _stop_all(started, reporter) or code
    return code


def play(stack: Stack, started: Processes, reporter: Reporter, *, keep: bool) -> int:
    sandbox = stack.start_sandbox()
    stack.begin_migration()
    deliveries = make_deliveries(FOLDER / "outbox", reporter)
    airflow = stack.start_airflow()
    stack.wait_for_dags(airflow, "deliver_files", "ingest_event_feed", "ingest_transfers")
    ready = reporter.elapsed
    scenario = DemoScenario(stack, sandbox, airflow, started, reporter)
    run_id, seen = scenario.deliver(deliveries)
    scenario.ingest()
    scenario.list_transfers()
    done = reporter.elapsed
    reporter.say("Reading everything back")
    facts = report.gather(deliveries, seen, run_id, sandbox, airflow, stack.warehouse)
    wrong = report.print_report(facts, reporter)
    reporter.line(f"\nStarted in {ready:.0f} s, delivered and ingested in {done - ready:.0f} s, with the real Airflow.")
    _print_locations(stack, airflow, sandbox.base_url, reporter, keep=keep)
    if wrong:
        raise DemoFailed(f"{len(wrong)} claim(s) are not so: {'; '.join(wrong)}", stack.airflow_logs)
    reporter.line("\nAll of it is so.", "bold green")
    return 0


def _print_locations(stack: Stack, airflow: Airflow, service: str, reporter: Reporter, *, keep: bool) -> None:
    reporter.heading("Where to look")
    reporter.line(f"  warehouse (SQLite)    {stack.warehouse}")
    reporter.line(f"  logs of the tasks     {stack.airflow_logs}")
    reporter.line(f"  logs of the processes {FOLDER / 'logs'}")
    if keep:
        reporter.line(f"  Airflow, no login     {airflow.url}")
        reporter.line(f"  sandbox               {service} (keys: {FOLDER / 'sandbox.json'})")
        reporter.line(f"  It all goes on running. To stop it: {STOP}", "bold")
    else:
        reporter.line("  `make demo KEEP=1` leaves Airflow and the sandbox running, to look at in a browser.")


def _print_failure(error: Exception, reporter: Reporter) -> None:
    log: Path | None = getattr(error, "log", None)
    if log:
        newest, lines = tail(log)
        reporter.line(f"\nThe end of {newest}:", "dim")
        for line in lines:
            reporter.line(f"  | {line}", "dim")
    reporter.line(f"\nThe demo failed: {error}", "bold red")
    reporter.line(f"Logs: {FOLDER / 'logs'} and {FOLDER / 'airflow' / 'logs'}")


def _stop_all(started: Processes, reporter: Reporter) -> int:
    if left := started.stop():
        reporter.line(f"Could not stop: {', '.join(left)}", "bold red")
        return 1
    reporter.say("Everything that was started is stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
