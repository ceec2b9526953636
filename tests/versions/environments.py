"""An environment for each version of Airflow, with the package and what its constraints pin.

``python -m versions.environments VERSION`` makes it where it is missing, and prints its interpreter.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

from support.environments import UV, InstallFailed, NoPython, make_environment, python_of, run_uv
from support.repository import REPOSITORY, TESTS

#: The newest version is the one that the repository's own constraints pin.
NEWEST_CONSTRAINTS: Final = REPOSITORY / "constraints.txt"

EXTRAS: Final = "sandbox,sqlite,postgres,parquet,xlsx,openlineage,s3"

#: The version to come: its newest release or pre-release, with what the newest constraints pin besides Airflow.
NEXT: Final = "3.4"

#: What serves connections to DuckDB where the constraints pin an older common-sql than the official provider needs.
OLD_DUCKDB: Final = ("airflow-provider-duckdb", "duckdb>=1.3.2", "pytz")
_COMMON_SQL_OF_DUCKDB: Final = [1, 28, 2]
TOOLS: Final = TESTS / "versions/tools.txt"

#: The Python of every environment; managed services run it, and all these versions of Airflow support it.
PYTHON: Final = "3.12"


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


def _extra(name: str) -> list[str]:
    requirements: list[str] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ][name]
    return requirements


def _common_sql_of(constraints: Path) -> list[int]:
    pinned = re.search(r"^apache-airflow-providers-common-sql==([\d.]+)", constraints.read_text(), re.MULTILINE)
    assert pinned, f"{constraints} pins no common-sql"
    return _parts(pinned[1])


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def environment_of(version: str, python: Path) -> Path:
    """Return the interpreter of the environment of ``version``, which is made if what it follows from has changed.

    :raises InstallFailed: the package and its extras do not fit the constraints.
    """
    constraints = constraints_of(version)

    def install(interpreter: Path) -> None:
        into = ("pip", "install", "--python", interpreter, "--link-mode", "hardlink")
        build = ("--build-constraint", NEWEST_CONSTRAINTS)
        package = ("--editable", f"{REPOSITORY}[{EXTRAS}]")
        airflow: tuple[str, ...] = (f"apache-airflow=={version}",)
        pins = constraints
        if version == NEXT:
            airflow = (f"apache-airflow=={NEXT}.*", "--prerelease", "allow")
            pins = interpreter.parents[1] / "constraints.txt"
            others = re.sub(r"^apache-airflow(-core|-task-sdk)?==.*\n", "", constraints.read_text(), flags=re.MULTILINE)
            pins.write_text(others)
        is_old = _common_sql_of(constraints) < _COMMON_SQL_OF_DUCKDB
        duckdb = OLD_DUCKDB if is_old else _extra("duckdb")
        run_uv(*into, "--constraint", pins, *build, *package, *airflow, *duckdb)
        run_uv("pip", "check", "--python", interpreter)
        run_uv(*into, "--requirement", TOOLS)

    inputs = (REPOSITORY / "pyproject.toml", constraints, TOOLS, Path(__file__))
    return make_environment(version, python, inputs, install)


def main() -> None:
    (version,) = sys.argv[1:]
    if version not in (known := [*all_versions(), NEXT]):
        sys.exit(f"There is no environment for Airflow {version}, but for {', '.join(known)}")
    try:
        print(environment_of(version, python_of(PYTHON, UV)))
    except (NoPython, InstallFailed) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
