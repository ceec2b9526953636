"""What is built holds both packages whole, and what is missing or too much in it is found."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.package_contents import REPOSITORY, faults_of_sbom, faults_of_sdist, faults_of_wheel, with_version


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", folder]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return folder


def test_both_are_whole(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert list(faults_of_wheel(wheel)) == []
    assert list(faults_of_sdist(sdist)) == []


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda files: files.pop("outbound_transfer/py.typed"), "missing: outbound_transfer/py.typed"),
        (
            lambda files: files.pop("outbound_transfer_sandbox/web/templates/mailbox.html"),
            "missing: outbound_transfer_sandbox/web/templates/mailbox.html",
        ),
        (lambda files: files.update({"tests/conftest.py": b""}), "not of the packages: tests/conftest.py"),
        (
            lambda files: files.update({"outbound_transfer/cli/commands.py": b""}),
            "differs: outbound_transfer/cli/commands.py",
        ),
        (lambda files: files.pop(_one(files, "LICENSE")), "no licence"),
        (lambda files: files.update({_one(files, "METADATA"): b""}), "the README is not its description"),
        (
            lambda files: files.update({_one(files, "METADATA"): files[_one(files, "METADATA")] + b"[x](docs/x.md)"}),
            "a package index cannot follow: docs/x.md",
        ),
        (lambda files: files.update({_one(files, "entry_points.txt"): b""}), "entry points of pytest11: {}"),
    ],
)
def test_what_is_wrong_with_a_wheel_is_found(built: Path, tmp_path: Path, damage: Callable, found: str) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    damage(files)
    with zipfile.ZipFile(tmp_path / wheel.name, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert found in list(faults_of_wheel(tmp_path / wheel.name))


def test_what_a_source_archive_lacks_is_found(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as whole, tarfile.open(tmp_path / sdist.name, "w:gz") as poorer:
        for member in whole:
            if not member.name.endswith("/docker-compose.yaml"):
                poorer.addfile(member, whole.extractfile(member))
    assert list(faults_of_sdist(tmp_path / sdist.name)) == ["missing: docker-compose.yaml"]


def test_what_an_sbom_lacks_is_found(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    project = tomllib.loads(with_version((REPOSITORY / "pyproject.toml").read_text(), wheel))["project"]
    names = [requirement.partition(">")[0] for requirement in project["dependencies"]]
    described = {
        "metadata": {"component": {"bom-ref": "root", "name": project["name"], "version": project["version"]}},
        "components": [{"bom-ref": name, "name": name} for name in names],
        "dependencies": [{"ref": "root", "dependsOn": names}],
    }
    sbom = tmp_path / "sbom.cdx.json"
    sbom.write_text(json.dumps(described))
    assert list(faults_of_sbom(sbom, wheel)) == []
    del described["metadata"]["component"]["version"]
    names.remove("httpx")
    sbom.write_text(json.dumps(described))
    assert list(faults_of_sbom(sbom, wheel)) == [
        f"describes {project['name']} None",
        "a dependency is not described: httpx",
    ]


def _one(files: dict[str, bytes], name: str) -> str:
    (found,) = (path for path in files if path.endswith(f"/{name}"))
    return found
