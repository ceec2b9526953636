"""What a built wheel and source archive must hold, and nothing else."""

from __future__ import annotations

import configparser
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from support.repository import REPOSITORY

#: The folder of the tree that becomes each folder of the wheel. `dags/` ships as the provider's example Dags.
SOURCES = {
    "airflow_provider_outbound_transfer": "include/airflow_provider_outbound_transfer",
    "outbound_transfer": "plugins/outbound_transfer",
    "outbound_transfer/example_dags": "dags",
    "outbound_transfer/operations": "include/observability",
    "outbound_transfer_sandbox": "include/outbound_transfer_sandbox",
}
ENTRY_POINTS = {
    "airflow.plugins": {"outbound_transfer": "outbound_transfer.ui.plugin:OutboundTransferPlugin"},
    "apache_airflow_provider": {"provider_info": "outbound_transfer.get_provider_info:get_provider_info"},
    "console_scripts": {
        "outbound-transfer": "outbound_transfer.cli.console:main",
        "outbound-transfer-sandbox": "outbound_transfer_sandbox.__main__:main",
    },
    "pytest11": {"outbound_transfer_sandbox": "outbound_transfer_sandbox.pytest_plugin"},
}
#: The target of a link that is relative to the repository.
_RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")

#: What the tests of an unpacked source archive read.
BESIDE_THE_PACKAGES = (
    *("LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt", "pyproject.toml", ".ci/run"),
    *("docker-compose.yaml", "Dockerfile", ".dockerignore", ".env.example", "plugins/.airflowignore"),
    *(".github/workflows/nightly.yml", "tests/conftest.py"),
)


def faults_of_wheel(wheel: Path) -> Iterator[str]:
    """What is wrong with it: each file of both packages must be there, byte for byte, and no other."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    about = {name.partition("/")[2]: content for name, content in held.items() if ".dist-info/" in name}
    packed = {name: content for name, content in held.items() if ".dist-info/" not in name}
    yield from _differences({name: path.read_bytes() for name, path in _sources().items()}, packed)
    if about.get("licenses/LICENSE") != (REPOSITORY / "LICENSE").read_bytes():
        yield "no licence"
    metadata = about.get("METADATA", b"").decode()
    if (REPOSITORY / "README.md").read_text().partition("\n")[0] not in metadata:
        yield "the README is not its description"
    yield from (f"a package index cannot follow: {link}" for link in _RELATIVE_LINK.findall(metadata))
    entry_points = configparser.ConfigParser(delimiters=["="])
    entry_points.read_string(about.get("entry_points.txt", b"").decode())
    for group, expected in ENTRY_POINTS.items():
        found = dict(entry_points[group]) if entry_points.has_section(group) else {}
        if not expected.items() <= found.items():
            yield f"entry points of {group}: {found}"


def faults_of_sdist(sdist: Path) -> Iterator[str]:
    """What is wrong with it: whoever unpacks it can build the wheel and run the tests."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    packages = {str(path.relative_to(REPOSITORY)) for path in _sources().values()}
    tests = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("*.py")}
    yield from (f"missing: {name}" for name in sorted({*packages, *tests, *BESIDE_THE_PACKAGES} - names))


def _sources() -> dict[str, Path]:
    return {
        f"{package}/{path.relative_to(REPOSITORY / source)}": path
        for package, source in SOURCES.items()
        for path in sorted((REPOSITORY / source).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _differences(expected: dict[str, bytes], packed: dict[str, bytes]) -> Iterator[str]:
    yield from (f"missing: {name}" for name in sorted(expected.keys() - packed.keys()))
    yield from (f"not of the packages: {name}" for name in sorted(packed.keys() - expected.keys()))
    yield from (f"differs: {name}" for name in sorted(expected) if packed.get(name, expected[name]) != expected[name])
