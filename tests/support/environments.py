"""Environments below ``.venvs``, each made anew when what it follows from has changed."""

from __future__ import annotations

import hashlib
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
    """Return the interpreter of the environment of that name.

    :param python: the interpreter to make it with.
    :param inputs: the files that it follows from.
    :param install: installs into the environment of an interpreter.
    :raises InstallFailed: the installation fails.
    """
    folder = FOLDER / name
    interpreter, stamp = folder / "bin/python", folder / "complete"
    state = hashlib.sha256(b"\0".join(file.read_bytes() for file in inputs)).hexdigest()
    if not stamp.exists() or stamp.read_text() != state:
        run_uv("venv", "--clear", "--python", python, folder)
        install(interpreter)
        stamp.write_text(state)
    return interpreter


def run_uv(*command: str | Path) -> None:
    """Run uv.

    :raises InstallFailed: it fails.
    """
    done = subprocess.run([UV, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallFailed(f"uv {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
