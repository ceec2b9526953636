"""Run the targets of `make nightly`, two at a time; go on where an earlier run on this commit stopped.

``build/nightly/COMMIT.log`` has a line for each target: commit, target, seconds, a count of what it did, ``green`` or
``red``. A target that is green there is skipped. Their output is beside it.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

#: How the targets say what they did: pytest's and unittest's counts, and those of the searches.
COUNT: Final = re.compile(
    r"\d[\d,]* (?:passed|schedules?|pairs?|faults?|kills?|inputs?|states?|steps|pages|runs|scenarios|extras|mutants)\b"
    r"|seeds \d+ to \d+"
)


def commit() -> str:
    """Return the short name of the commit; with ``-dirty`` if the tree differs from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def run(target: str, seed: str, folder: Path) -> tuple[bool, str]:
    """Run a target; return whether it is green, and what it counts."""
    output = folder / f"{target}.txt"
    with output.open("w") as file:
        made = subprocess.run(
            ["make", target, f"SEED={seed}", "COVERAGE=1"], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    counts = COUNT.findall(output.read_text(errors="replace"))
    return made.returncode == 0, counts[-1] if counts else "-"


def main(seed: str, targets: list[str]) -> int:
    """Run what is not green yet; return 1 if a target is red."""
    name = commit()
    folder = ROOT / "build/nightly" / name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    lines = log.read_text().splitlines() if log.exists() and not name.endswith("-dirty") else []
    green = {line.split("\t")[1] for line in lines if line.endswith("green")}

    def try_out(target: str) -> bool:
        if target in green:
            print(f"{target}: green before", flush=True)
            return True
        began = time.monotonic()
        is_green, count = run(target, seed, folder)
        line = "\t".join((name, target, f"{time.monotonic() - began:.0f} s", count, "green" if is_green else "red"))
        with log.open("a") as file:
            file.write(f"{line}\n")
        print(line if is_green else f"{line}: see {folder / target}.txt", flush=True)
        return is_green

    with ThreadPoolExecutor(2) as lanes:  # half of the targets wait for their Airflows most of the time
        return 0 if all(list(lanes.map(try_out, targets))) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's "&" lets programs ignore, tests too
    sys.exit(main(sys.argv[1], sys.argv[2:]))
