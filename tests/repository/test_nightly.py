"""`make nightly` goes on where it stopped, and says which of its targets are red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import REPOSITORY

MAKEFILE = """
good:
	@echo '3 passed, 12 schedules'
bad:
	@echo tried >> tried; test ! -e broken
"""


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/nightly.py").write_text((REPOSITORY / "scripts/nightly.py").read_text())
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".gitignore").write_text("build/\ntried\nbroken\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "tests: begin"]):
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *command], cwd=tmp_path, check=True
        )
    return tmp_path


def night(folder: Path) -> tuple[int, list[list[str]]]:
    command = [sys.executable, "scripts/nightly.py", "7", "good", "bad"]
    status = subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode
    (log,) = (folder / "build/nightly").glob("*.log")
    return status, [line.split("\t") for line in log.read_text().splitlines()]


def test_a_night_runs_again_what_was_red_alone(nights: Path) -> None:
    (nights / "broken").touch()
    status, lines = night(nights)
    assert (status, {(line[1], line[3], line[-1]) for line in lines}) == (
        1,
        {("good", "12 schedules", "green"), ("bad", "-", "red")},
    )

    (nights / "broken").unlink()
    status, lines = night(nights)
    assert (status, [(line[1], line[-1]) for line in lines[2:]]) == (0, [("bad", "green")])
    assert night(nights) == (0, lines)


def test_a_tree_that_was_changed_is_run_as_a_whole(nights: Path) -> None:
    night(nights)
    with (nights / "Makefile").open("a") as file:
        file.write("# changed\n")
    command = [sys.executable, "scripts/nightly.py", "7", "good", "bad"]
    for _ in range(2):
        subprocess.run(command, cwd=nights, check=True, capture_output=True)
    assert (nights / "tried").read_text().count("tried") == 3
