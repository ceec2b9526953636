"""Interpreters, and environments below ``.venvs``, each made anew when what it follows from has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from support.repository import REPOSITORY

FOLDER: Final = REPOSITORY / ".venvs"
UV: Final = Path(sys.executable).with_name("uv")


class InstallFailed(Exception):
    """What an environment needs cannot be installed; the text is what uv says."""


def make_environment(name: str, python: Path, inputs: Sequence[Path], install: Callable[[Path], None]) -> Path:
    """The interpreter of the environment of that name, which follows from files."""
    folder = FOLDER / name
    interpreter, stamp = folder / "bin/python", folder / "complete"
    state = hashlib.sha256(b"\0".join(file.read_bytes() for file in inputs)).hexdigest()
    if not stamp.exists() or stamp.read_text() != state:
        run_uv("venv", "--clear", "--python", python, folder)
        install(interpreter)
        stamp.write_text(state)
    return interpreter


def run_uv(*command: str | Path) -> None:
    done = subprocess.run([UV, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallFailed(f"uv {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


class NoPython(Exception):
    """There is no interpreter of that version; the text says how to get one."""


def python_of(version: str, uv: Path) -> Path:
    """The newest interpreter of ``version`` ("3.13"): of pyenv, of uv, or on the path."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # pyenv's own commands stand on the path whether or not their version is chosen, so they are left out.
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != root / "shims"]
    path = [*(str(folder / "bin") for folder in (root / "versions").glob(f"{version}.*")), *path]
    found = subprocess.run(
        [uv, "python", "find", "--no-project", "--no-python-downloads", version],
        env=os.environ | {"PATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise NoPython(f"There is no Python {version}: `uv python install {version}`, or name others with --python")
    return Path(found.stdout.strip())
