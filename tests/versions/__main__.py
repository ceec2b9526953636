"""Tests the package with several versions of Airflow: ``python -m versions [--short] [VERSION …]``.

Each version has an environment of its own in ``.venvs``. Versions are tested two at a time. Prints a table of the steps
by version, and the reason for each skipped test. Exits with 1 if a step fails in any version.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from xml.etree import ElementTree as ET

from support.environments import UV, InstallFailed, NoPython, python_of
from support.repository import REPOSITORY
from versions.environments import NEXT, PYTHON, all_versions, environment_of

#: Folders and files of tests by step.
TESTS: Final = {
    "this Airflow": (
        "tests/versions",
        "tests/integration/test_content_in_airflow.py::test_values_returned_for_expand_kwargs_are_not_rendered",
    ),
    "memory": (
        "tests/integration/test_delivery.py::test_one_machine_needs_no_setting_and_others_a_database",
        "tests/integration/test_delivery.py::test_without_a_database_a_task_on_several_machines_creates_nothing",
    ),
    "waits": ("tests/benchmarks/test_many_waiters.py",),
    "approval": ("tests/e2e/airflow/test_drafts.py",),
    "deliveries": ("tests/integration/test_delivery.py", "tests/integration/test_failed_deliveries.py"),
    "unit": ("tests/unit",),
}
FAULTS: Final = "faults"
STEPS: Final = ("install", *TESTS, FAULTS)

#: What the short form runs: what differs from version to version. All other tests run on the newest version.
SHORT_STEPS: Final = ("install", "this Airflow", "memory")

#: The versions of the short form: the oldest, and the last before Airflow had a task state store.
SHORT_VERSIONS: Final = (all_versions()[0], "3.2.1")

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
    known = [*all_versions(), NEXT]
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", help=f"of {', '.join(known)}; default: all but {NEXT}, the next one"
    )
    parser.add_argument("--short", action="store_true", help="two versions, and of the tests what differs by version")
    parser.add_argument("--seed", type=int, help="chooses one version by chance, where none is named")
    options = parser.parse_args()
    some = SHORT_VERSIONS if options.short else all_versions()
    versions = options.versions or (some if options.seed is None else random.Random(options.seed).sample(some, 1))
    if unknown := set(versions) - set(known):
        parser.error(f"unknown versions: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    try:
        python = python_of(PYTHON, UV)
    except NoPython as error:
        sys.exit(str(error))
    steps = SHORT_STEPS if options.short else STEPS
    with ThreadPoolExecutor(2) as pool:
        checked = pool.map(lambda version: check_version(version, python, steps), versions)
    results = dict(zip(versions, checked, strict=True))
    print_summary(results, steps)
    return int(any(result.failed for steps in results.values() for result in steps.values()))


def check_version(version: str, python: Path, steps: tuple[str, ...]) -> dict[str, Result]:
    """Run the steps with one version of Airflow. If the installation fails, the others are not run."""
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
    for step in steps[1:]:
        record(step, run_faults(interpreter) if step == FAULTS else run_tests(interpreter, TESTS[step]))
    return results


def run_tests(interpreter: Path, paths: tuple[str, ...]) -> Result:
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Airflow's own deprecations differ from version to version and tell nothing about the package.
        options = ("-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning", f"--junit-xml={report}")
        # The driver of MySQL is compiled, and differs little from version to version; the other tests have it.
        done = _run(interpreter, "-m", "pytest", *options, "-k", "not mysqlclient", *paths)
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


def print_summary(results: dict[str, dict[str, Result]], steps: tuple[str, ...]) -> None:
    """Print steps by version: tests or schedules that passed, and seconds; then what was skipped, and why."""
    print(f"\n{'':14}" + "".join(f"{version:>26}" for version in results))
    for step in steps:
        cells = [str(found.get(step, "not run")) for found in results.values()]
        print(f"{step:14}" + "".join(f"{cell:>26}" for cell in cells))
    for version, found in results.items():
        for step, result in found.items():
            for reason, count in (result.skipped or Counter()).items():
                print(f"{version} {step}: {count} skipped: {reason}")
    print(f"{sum(result.passed for found in results.values() for result in found.values()):,} passed")
    if left_out := [step for step in STEPS if step not in steps]:
        print(f"Not run in the short form: {', '.join(left_out)}")


if __name__ == "__main__":
    sys.exit(main())
