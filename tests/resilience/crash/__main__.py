"""Runs the kill matrix: ``python -m resilience.crash [--only TEXT] [--parallel N] …``.

A real Airflow delivers to real sandboxes while its processes are killed and its tasks are cleared, each at an exact
moment. Prints what became of each case. Exits with 1 where a promise was broken or a moment never came.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx

from resilience.crash.cases import Dag, matrix
from resilience.crash.crash_runner import CrashHarness, Outcome
from resilience.crash.stack import CrashStack
from support.airflow_stack.console import DemoFailed, Reporter
from support.airflow_stack.many_sandboxes import running_stack
from support.airflow_stack.processes import Interrupted, Signals

DAGS: tuple[Dag, ...] = ("plain", "parallel", "poking", "deferring", "mapped", "mapped_deferring")


def main() -> int:
    options = _arguments()
    groups = [group for group in matrix() if any(options.only in case.name for case in group)]
    if not groups:
        print(f"No case has {options.only!r} in its name")
        return 2
    reporter, outcomes = Reporter(), list[Outcome]()
    code, folder = 1, Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        with running_stack(folder, reporter, options.parallel, Signals(), kind=CrashStack) as stack:
            stack.wait_for_dags(stack.airflow, *DAGS)
            for outcome in CrashHarness(stack).play(groups):
                outcomes.append(outcome)
                reporter.say(f"{len(outcomes):3} of {sum(map(len, groups))}: {outcome.case.name}: {verdict(outcome)}")
            code = 1 if any(outcome.violations for outcome in outcomes) else 0
    except Interrupted as interrupted:
        code = interrupted.exit_code
    except (DemoFailed, httpx.HTTPError) as error:
        reporter.line(f"Not played to the end: {error!r}", "bold red")
    reporter.line(table(outcomes))
    reporter.line(f"{reporter.elapsed:.0f} s, {options.parallel} sandboxes")
    if code or options.keep:
        reporter.line(f"Logs: {folder / 'airflow' / 'logs'} (tasks), {folder / 'logs'} (processes)")
    else:
        shutil.rmtree(folder)
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases with this in their name")
    parser.add_argument("--parallel", type=int, default=16, metavar="N", help="deliveries at once (4 or more)")
    parser.add_argument("--keep", action="store_true", help="keep the logs although all is well")
    return parser.parse_args()


def verdict(outcome: Outcome) -> str:
    return f"BROKEN: {'; '.join(outcome.violations)}" if outcome.violations else "sent once"


def table(outcomes: Sequence[Outcome]) -> str:
    rows = [("DAG", "moment", "action", "tries", "calls", "leaked", "verdict")]
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.case.action, outcome.case.dag, outcome.case.moment)):
        case, figures = outcome.case, (outcome.tries, outcome.calls, outcome.leaked)
        rows.append((case.dag, case.moment, case.action, *map(str, figures), verdict(outcome)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    broken = sum(bool(outcome.violations) for outcome in outcomes)
    leaked = sum(outcome.leaked for outcome in outcomes)
    worst = max((outcome.leaked for outcome in outcomes), default=0)
    total = f"{len(outcomes)} cases, {broken} broke a promise; drafts leaked: {leaked}, at most {worst} in a case"
    return "\n".join(["", *lines, "", total])


if __name__ == "__main__":
    sys.exit(main())
