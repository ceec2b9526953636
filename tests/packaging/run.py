"""Builds the wheel and the source archive and tests what is built: ``python tests/packaging/run.py [--python 3.12]…``.

The wheel is built from the source archive and must be the one that the tree gives. For Python 3.11 and 3.13 (or those
that are named) it is installed in a clean environment under the constraints: first by itself, for every module's
import, Airflow's commands and a delivery to the installed sandbox; then with the tools of the tests, for the unit,
repository, warehouse and contract tests of the unpacked source archive, without those of ``make test-long``. The SBOM
names what it was installed with, by itself: ``--sbom FILE`` keeps it. With the first of these versions it is then
installed without constraints, each package that pyproject.toml names in its lowest version: by itself, for every
module's import and a delivery, then with the tools of the tests, for the unit tests. Then, with the last of these
versions, each extra is installed alone and does what it is for: ``--extra duckdb`` checks that one and nothing else. A
version that is missing is a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extras import extras_of, surroundings
from sbom import faults_of_sbom, with_version

from support.environments import NoPython, python_of
from support.package_contents import REPOSITORY, faults_of_sdist, faults_of_wheel

DISTRIBUTION = "airflow-provider-outbound-transfer"
UV = Path(sys.executable).with_name("uv")
CONSTRAINTS = REPOSITORY / "constraints.txt"
SBOM = "sbom.cdx.json"
#: Extras that the tests need.
TESTED = "sandbox,sqlite,postgres,duckdb,mysql,iceberg,parquet,xlsx,s3,azure,sftp,slack,smtp,openlineage,celery"
COMMANDS = {
    ("providers", "list"): DISTRIBUTION,
    ("providers", "get", DISTRIBUTION): DISTRIBUTION,
    ("providers", "hooks"): "outbound_transfer",
    ("outbound-transfer", "feed", "--help"): "rebuild-cursor",
}


class Failed(Exception):
    """A check has failed; the text says which, and what was printed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="VERSION", help="in the place of 3.11 and 3.13")
    parser.add_argument("--extra", action="append", metavar="NAME", help="check this extra alone, and nothing else")
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="keep the SBOM of the last of these versions here")
    parser.add_argument("--workers", default="2", help="processes of the tests")
    options = parser.parse_args()
    try:
        interpreters = {version: python_of(version, UV) for version in options.python or ["3.11", "3.13"]}
        *_, python_of_extras = interpreters.values()
        with tempfile.TemporaryDirectory(prefix="package-") as folder:
            wheel, sdist = build(Path(folder))
            for version, python in interpreters.items() if not options.extra else ():
                try_out(wheel, sdist, python, Path(folder) / version, options.workers)
                if options.sbom:
                    shutil.copyfile(Path(folder) / version / SBOM, options.sbom)
            if not options.extra:
                python, *_ = interpreters.values()
                try_out_lowest(wheel, sdist, python, Path(folder) / "lowest", options.workers)
            for extra in options.extra or extras_of(wheel):
                try_out_extra(wheel, extra, python_of_extras, Path(folder) / "extras")
    except (Failed, NoPython) as failure:
        print(failure, file=sys.stderr)
        return 1
    print("The built package works.")
    return 0


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel, and the source archive that it was built from."""
    with step("wheel and source archive: built, and what they hold"):
        for kind, out in ((), "built"), (("--wheel",), "direct"):
            run(UV, "build", *kind, "--build-constraint", CONSTRAINTS, "--out-dir", folder / out, REPOSITORY)
        (wheel,), (direct,) = (folder / "built").glob("*.whl"), (folder / "direct").glob("*.whl")
        (sdist,) = (folder / "built").glob("*.tar.gz")
        faults = [*faults_of_wheel(wheel), *faults_of_sdist(sdist)]
        if wheel.read_bytes() != direct.read_bytes():
            faults.append("the wheel of the source archive is not the tree's")
        if faults:
            raise Failed("\n".join(faults))
    with step("the page of the package index"):
        run(Path(sys.executable).with_name("twine"), "check", "--strict", wheel, sdist)
    return wheel, sdist


def try_out(wheel: Path, sdist: Path, python: Path, folder: Path, workers: str) -> None:
    folder.mkdir()
    name = folder.name
    environment = folder / "environment"
    with step(f"Python {name}: installed by itself"):
        run(UV, "venv", "--python", python, environment)
        install(environment, wheel)
    with step(f"Python {name}: the SBOM"):
        describe(wheel, environment, folder)
    with step(f"Python {name}: every module, a delivery to the installed sandbox"):
        home = folder / "airflow"
        home.mkdir()
        run(environment / "bin/python", "-I", REPOSITORY / "tests/packaging/check_bare.py", home, cwd=folder)
    with step(f"Python {name}: Airflow's commands"):
        for command, expected in COMMANDS.items():
            said = run(environment / "bin/airflow", *command, cwd=folder, env={"AIRFLOW_HOME": str(home)})
            if expected not in said:
                raise Failed(f"airflow {' '.join(command)} does not say {expected}:\n{said}")
    with step(f"Python {name}: tests of the source archive"):
        install(environment, wheel, TESTED)
        tools = ("--constraint", CONSTRAINTS, "--group", f"{REPOSITORY / 'pyproject.toml'}:dev")
        run(UV, "pip", "install", "--python", environment / "bin/python", *tools)
        run_tests(
            environment, unpacked(sdist, folder), workers,
            *("tests/unit", "tests/repository", "tests/sandbox/contract"),
            *("tests/integration/store", "tests/integration/test_shared_poll.py"),
        )  # fmt: skip


def describe(wheel: Path, environment: Path, folder: Path) -> None:
    """Write the SBOM of the wheel: it bundles nothing, so the packages are those that it is installed with."""
    sbom, pyproject = folder / SBOM, folder / "pyproject.toml"
    # CycloneDX's tool reads the version there, and does not know hatch's.
    pyproject.write_text(with_version((REPOSITORY / "pyproject.toml").read_text(), wheel))
    command = ("environment", "--validate", "--spec-version", "1.6", "--mc-type", "library", "--pyproject", pyproject)
    tool = Path(sys.executable).with_name("cyclonedx-py")
    run(tool, *command, "--output-file", sbom, environment / "bin/python")
    if faults := list(faults_of_sbom(sbom, wheel)):
        raise Failed("\n".join(faults))


def try_out_lowest(wheel: Path, sdist: Path, python: Path, folder: Path, workers: str) -> None:
    """Try what pyproject.toml says is enough: the lowest version of each package that it names."""
    home, environment, sources = folder / "airflow", folder / "environment", unpacked(sdist, folder)
    home.mkdir()
    # uv counts what a wheel requires as indirect, of which it takes the newest: it reads pyproject.toml instead.
    pip = (UV, "pip", "install", "--python", environment / "bin/python")
    lowest = (*pip, "--resolution", "lowest-direct", "--requirement", sources / "pyproject.toml")
    required = tomllib.loads((sources / "pyproject.toml").read_text())["project"]["dependencies"]
    (airflow,) = (each.replace(">=", "==") for each in required if each.startswith("apache-airflow>="))
    with step(f"Lowest direct versions, {airflow}: every module, a delivery to the installed sandbox"):
        run(UV, "venv", "--python", python, environment)
        run(*lowest)
        if airflow not in run(UV, "pip", "freeze", "--python", environment / "bin/python").splitlines():
            raise Failed(f"{airflow} is not installed")
        run(*pip, "--no-deps", wheel)
        run(environment / "bin/python", "-I", REPOSITORY / "tests/packaging/check_bare.py", home, cwd=folder)
    with step("Lowest direct versions: unit tests of the source archive"):
        extras = [f"--extra={extra}" for extra in TESTED.split(",") if extra != "mysql"]
        run(*lowest, *extras, "--group", f"{sources / 'pyproject.toml'}:dev")
        run_tests(environment, sources, workers, "tests/unit")


def try_out_extra(wheel: Path, extra: str, python: Path, folder: Path) -> None:
    home, environment = folder / "airflow", folder / extra  # Airflow's database is migrated once
    home.mkdir(parents=True, exist_ok=True)
    with step(f"Extra {extra}: installed alone"):
        run(UV, "venv", "--python", python, environment)
        install(environment, wheel, extra)
    with step(f"Extra {extra}: does what it is for"), surroundings(extra, folder) as variables:
        check = REPOSITORY / "tests/packaging/check_extra.py"
        run(environment / "bin/python", "-I", check, extra, home, cwd=folder, env=variables)
    shutil.rmtree(environment)


def unpacked(sdist: Path, folder: Path) -> Path:
    shutil.unpack_archive(sdist, folder)
    (sources,) = folder.glob("airflow_provider_*")
    return sources


def run_tests(environment: Path, sources: Path, workers: str, *tests: str) -> None:
    """Test the installed wheel with tests of the source archive, without those of ``make test-long``."""
    # Not "python -m pytest", which would put the folder on the path.
    pytest = (environment / "bin/pytest", "-q", "-n", workers, "--dist", "worksteal", "-m", "not nightly")
    said = run(*pytest, "tests/packaging/check_installed.py", *tests, cwd=sources)
    print(f"    {said.strip().splitlines()[-1]}", flush=True)


def install(environment: Path, wheel: Path, extra: str = "") -> None:
    requirement = f"{DISTRIBUTION}[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    run(UV, "pip", "install", "--python", environment / "bin/python", "--constraint", CONSTRAINTS, requirement)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command says, which sees nothing of this environment.

    :raises Failed: it failed.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "PYTEST"))}
    own.pop("VIRTUAL_ENV", None)
    done = subprocess.run(command, cwd=cwd, env=own | (env or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} failed:\n{done.stdout[-6000:]}\n{done.stderr[-4000:]}")
    return done.stdout


@contextmanager
def step(name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
