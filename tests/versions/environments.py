"""An environment for each version of Airflow, with the package and what its constraints pin.

``python -m versions.environments VERSION`` makes it where it is missing, and prints its interpreter.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from support.pythons import NoPython, python_of
from support.repository import REPOSITORY, TESTS

FOLDER: Final = REPOSITORY / ".venvs"
UV: Final = Path(sys.executable).with_name("uv")

#: The newest version is the one that the repository's own constraints pin.
NEWEST_CONSTRAINTS: Final = REPOSITORY / "constraints.txt"

EXTRAS: Final = "sandbox,sqlite,postgres,duckdb,openlineage,s3"
TOOLS: Final = TESTS / "versions/tools.txt"

#: The Python of every environment; managed services run it, and all these versions of Airflow support it.
PYTHON: Final = "3.12"


class InstallFailed(Exception):
    """The package cannot be installed with a version of Airflow; the text is what uv says."""


def all_versions() -> list[str]:
    """Return every version to test, oldest first. The oldest is the one that the package allows."""
    oldest = re.search(r'"apache-airflow>=([\d.]+)"', (REPOSITORY / "pyproject.toml").read_text())
    newest = re.search(r"^apache-airflow==(\S+)", NEWEST_CONSTRAINTS.read_text(), re.MULTILINE)
    assert oldest, "pyproject.toml allows any Airflow"
    assert newest, "constraints.txt pins no Airflow"
    return sorted({oldest[1], *_pinned_versions(), newest[1]}, key=_parts)


def constraints_of(version: str) -> Path:
    """Return the file that pins the dependencies of ``version``: its own, or that of the next version with a file."""
    newer = [pinned for pinned in _pinned_versions() if _parts(pinned) >= _parts(version)]
    return REPOSITORY / f"constraints/airflow-{min(newer, key=_parts)}.txt" if newer else NEWEST_CONSTRAINTS


def _pinned_versions() -> list[str]:
    return [file.stem.removeprefix("airflow-") for file in (REPOSITORY / "constraints").glob("airflow-*.txt")]


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def environment_of(version: str, python: Path) -> Path:
    """Return the interpreter of the environment of ``version``, which is made if what it follows from has changed.

    :raises InstallFailed: the package and its extras do not fit the constraints.
    """
    packages = [f"apache-airflow=={version}"]
    return make_environment(version, python, packages, constraints=constraints_of(version), extras=EXTRAS, tools=TOOLS)


def make_environment(
    name: str, python: Path, packages: Sequence[str], *, constraints: Path, extras: str = "", tools: Path | None = None
) -> Path:
    """Return the interpreter of an environment with the package, which is made if what it follows from has changed.

    :param packages: requirements besides the package, under the same constraints.
    :param tools: requirements without constraints.
    :raises InstallFailed: they do not fit the constraints.
    """
    folder = FOLDER / name
    interpreter, stamp = folder / "bin/python", folder / "complete"
    inputs = (REPOSITORY / "pyproject.toml", constraints, *([tools] if tools else []), Path(__file__))
    state = hashlib.sha256(b"\0".join((*(file.read_bytes() for file in inputs), repr(packages).encode()))).hexdigest()
    if not stamp.exists() or stamp.read_text() != state:
        _uv("venv", "--clear", "--python", python, folder)
        install = ("pip", "install", "--python", interpreter, "--link-mode", "hardlink")
        build = ("--build-constraint", NEWEST_CONSTRAINTS)
        package = ("--editable", f"{REPOSITORY}[{extras}]" if extras else REPOSITORY)
        _uv(*install, "--constraint", constraints, *build, *package, *packages)
        _uv("pip", "check", "--python", interpreter)
        if tools:
            _uv(*install, "--requirement", tools)
        stamp.write_text(state)
    return interpreter


def _uv(*command: str | Path) -> None:
    done = subprocess.run([UV, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallFailed(f"uv {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    (version,) = sys.argv[1:]
    if version not in all_versions():
        sys.exit(f"There is no environment for Airflow {version}, but for {', '.join(all_versions())}")
    try:
        print(environment_of(version, python_of(PYTHON, UV)))
    except (NoPython, InstallFailed) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
