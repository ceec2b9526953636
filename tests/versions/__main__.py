"""Tests the package with several versions of Airflow: ``python -m versions [--short] [VERSION …]``.

Each version has an environment of its own in ``.venvs``. Prints a table of the steps by version, and the reason for
each skipped test. Exits with 1 if a step fails in any version.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from xml.etree import ElementTree as ET

from support.environments import UV, InstallFailed
from support.pythons import NoPython, python_of
from support.repository import REPOSITORY
from versions.environments import PYTHON, all_versions, environment_of

#: Folders and files of tests by step.
TESTS: Final = {
    "package": ("tests/versions/test_package.py",),
    "state stores": ("tests/integration/test_task_state.py",),
    "shared poll": ("tests/versions/test_trigger_runner.py",),
    "DAG runs": (
        "tests/versions/test_dag_runs.py",
        "tests/integration/test_content_in_airflow.py::test_what_a_task_returned_for_expand_kwargs_is_no_template",
    ),
    "waits": ("tests/e2e/airflow/test_many_waiters.py",),
    "deliveries": (
        *("tests/integration/test_delivery.py", "tests/integration/test_deliver_files.py"),
        *("tests/integration/test_conclusions.py", "tests/integration/test_reruns.py"),
        "tests/integration/test_false_alarms.py",
    ),
    "unit": ("tests/unit",),
}
FAULTS: Final = "faults"
STEPS: Final = ("install", *TESTS, FAULTS)

#: What the short form leaves out, besides the newest version, which all other tests run on.
LONG_STEPS: Final = {"unit", FAULTS}

#: Number of schedules of the fault matrix: two faults each, chosen by chance.
SAMPLE: Final = 200


@dataclass(frozen=True)
class Result:
    """The result of one step.

    :ivar skipped: how many tests were skipped, by reason.
    :ivar output: what is printed if the step failed.
    """

    passed: int
    failed: int
    seconds: float = 0.0
    skipped: Counter[str] | None = None
    output: str = ""

    def __str__(self) -> str:
        counts = [f"{self.passed}"]
        counts += [f"{self.failed} FAILED"] if self.failed else []
        counts += [f"{self.skipped.total()} skipped"] if self.skipped else []
        return f"{', '.join(counts)} ({self.seconds:.0f} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(all_versions())}; default: all")
    parser.add_argument("--short", action="store_true", help="older versions only; no unit tests, no faults")
    options = parser.parse_args()
    versions = options.versions or all_versions()[: -1 if options.short else None]
    if unknown := set(versions) - set(all_versions()):
        parser.error(f"unknown versions: {', '.join(sorted(unknown))}; known: {', '.join(all_versions())}")
    try:
        python = python_of(PYTHON, UV)
    except NoPython as error:
        sys.exit(str(error))
    results = {version: check_version(version, python, is_short=options.short) for version in versions}
    print_summary(results, is_short=options.short)
    return int(any(result.failed for steps in results.values() for result in steps.values()))


def check_version(version: str, python: Path, *, is_short: bool) -> dict[str, Result]:
    """Run every step with one version of Airflow. If the installation fails, the others are not run."""
    results: dict[str, Result] = {}

    def record(step: str, result: Result) -> None:
        results[step] = result
        print(f"{version:8} {step:14} {result}\n{result.output}".rstrip(), flush=True)

    began = time.monotonic()
    try:
        interpreter = environment_of(version, python)
    except InstallFailed as error:
        record("install", Result(0, 1, time.monotonic() - began, output=str(error)))
        return results
    record("install", Result(1, 0, time.monotonic() - began))
    for step, paths in TESTS.items():
        if not (is_short and step in LONG_STEPS):
            record(step, run_tests(interpreter, paths))
    if not is_short:
        record(FAULTS, run_faults(interpreter))
    return results


def run_tests(interpreter: Path, paths: tuple[str, ...]) -> Result:
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Airflow's own deprecations differ from version to version and tell nothing about the package.
        options = ("-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning", f"--junit-xml={report}")
        # The drivers of MySQL are compiled, and differ little from version to version; the other tests have them.
        done = _run(interpreter, "-m", "pytest", *options, "-k", "not mysqlclient and not mysql-connector", *paths)
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    skipped = Counter(str(reason.get("message")) for case in cases for reason in case.iter("skipped"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    failed = failed or int(done.returncode != 0)
    passed = len(cases) - skipped.total() - failed
    return Result(passed, failed, time.monotonic() - began, skipped, _tail(done) if failed else "")


def run_faults(interpreter: Path) -> Result:
    began = time.monotonic()
    options = ("--pairs", "--sample", str(SAMPLE), "--seed", "7", "--workers", "2")
    done = _run(interpreter, "-m", "resilience.fault_matrix", *options)
    counts = re.search(r"^([\d,]+) schedules, (\d+) broke a promise$", done.stdout, re.MULTILINE)
    schedules, broken = (int(count.replace(",", "")) for count in counts.groups()) if counts else (0, 0)
    failed = broken or int(done.returncode != 0)
    return Result(schedules - broken, failed, time.monotonic() - began, output=_tail(done) if failed else "")


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "PYTEST"))}
    environment = own | {"PYTHONPATH": str(REPOSITORY / "tests")}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


def print_summary(results: dict[str, dict[str, Result]], *, is_short: bool) -> None:
    """Print steps by version: tests or schedules that passed, and seconds; then what was skipped, and why."""
    print(f"\n{'':14}" + "".join(f"{version:>26}" for version in results))
    for step in STEPS:
        cells = [str(steps.get(step, "not run")) for steps in results.values()]
        print(f"{step:14}" + "".join(f"{cell:>26}" for cell in cells))
    for version, steps in results.items():
        for step, result in steps.items():
            for reason, count in (result.skipped or Counter()).items():
                print(f"{version} {step}: {count} skipped: {reason}")
    if is_short:
        print(f"Not run in the short form: {', '.join(sorted(LONG_STEPS))}, and the newest version unless it is named")


if __name__ == "__main__":
    sys.exit(main())
