"""Change a sample of the provider's code, one place at a time, and run the tests that reach it (`make test-mutants`).

mutmut changes the code and chooses the tests; it wants the package below ``src/``, so it works in a copy. A change
that no test finds is printed; in the modules that decide about a send it is an error, unless `survivors.toml` beside
this file says why it may survive.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COPY: Final = ROOT / "build/mutants"
MUTMUT: Final = [sys.executable, "-m", "mutmut"]

#: Of these, each survivor is explained.
PROVEN: Final = ("delivery.decision", "delivery.delivery", "delivery.row")

CONFIGURATION: Final = r"""
[tool.mutmut]
source_paths = ["src"]
only_mutate = [
    "src/outbound_transfer/client/*.py",
    "src/outbound_transfer/delivery/*.py",
    "src/outbound_transfer/store/*.py",
    "src/outbound_transfer/waiting/*.py",
]
also_copy = ["include", "scripts", "docs", "constraints.txt", "Makefile", "README.md"]
# The words of errors and logs.
do_not_mutate_patterns = ['^\s*f?"', '^\s*raise ', '\blog\.']
# Without tests that read the code itself, those that wait, and databases that take a second for each mutant.
pytest_add_cli_args = [
    "-m", "not e2e and not slow and not nightly",
    "-k", "not (taken_away or exception_anywhere or database_that_ or duckdb or mysql or psycopg)",
    "--timeout", "20",
]
# mutmut's own timeout signals a process id, even if the process has ended and another one has its id.
timeout_constant = 100_000.0
pytest_add_cli_args_test_selection = [
    "tests/unit/client",
    "tests/unit/store",
    "tests/unit/waiting",
    "tests/model/test_model.py",
    "tests/integration/client/test_retries.py",
    "tests/integration/store",
    "tests/integration/test_approval.py",
    "tests/integration/test_delivery.py",
    "tests/integration/test_delivery_keys.py",
    "tests/integration/test_event_feed_to_sql.py",
    "tests/integration/test_failed_deliveries.py",
    "tests/integration/test_privacy.py",
    "tests/integration/test_redelivery.py",
    "tests/integration/test_reminders.py",
    "tests/integration/test_transfers_to_sql.py",
]
"""


def make_copy() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "plugins", COPY / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("include", "scripts", "docs", "tests"):
        shutil.copytree(ROOT / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("constraints.txt", "Makefile", "README.md"):
        shutil.copy(ROOT / name, COPY)
    (COPY / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + CONFIGURATION)


def mutants() -> dict[str, int | None]:
    """Return the exit code of the tests by the name of each mutant; None: it was not tried."""
    found: dict[str, int | None] = {}
    for file in sorted(COPY.glob("mutants/src/**/*.meta")):
        found |= json.loads(file.read_text())["exit_code_by_key"]
    return found


def change_of(name: str) -> str:
    shown = subprocess.run([*MUTMUT, "show", name], cwd=COPY, capture_output=True, text=True, check=True).stdout
    lines = [line for line in shown.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return " -> ".join(line[1:].strip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="how many mutants; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the name of a module or function")
    options = parser.parse_args()
    make_copy()
    # Generate the mutants, and find which test reaches which; the name is of none of them.
    with (COPY / "mutmut.log").open("w") as log:
        subprocess.run([*MUTMUT, "run", "none"], cwd=COPY, stdout=log, stderr=log, check=False)
        names = sorted(name for name in mutants() if options.only in name)
        if options.sample:
            names = sorted(random.Random(options.seed).sample(names, min(options.sample, len(names))))  # noqa: S311
        subprocess.run([*MUTMUT, "run", "--max-children", "2", *names], cwd=COPY, stdout=log, stderr=log, check=True)
    codes = mutants()
    # 33: no test reaches it; None: it was not tried.
    survivors = [name for name in names if codes[name] in (0, 33, None)]
    known = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text())
    unexplained = 0
    for name in survivors:
        change = change_of(name)
        is_proven = any(f".{module}." in name for module in PROVEN)
        why = known.get(change, "" if is_proven else "-")
        unexplained += not why
        print(f"{name}: {change}\n    {why or 'UNEXPLAINED'}")
    print(f"{len(names)} mutants, {len(survivors)} survive, {unexplained} of them unexplained where a send is decided")
    return 1 if unexplained or not names else 0


if __name__ == "__main__":
    sys.exit(main())
