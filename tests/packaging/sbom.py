"""What a wheel's bill of materials must hold."""

from __future__ import annotations

import email
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def faults_of_sbom(sbom: Path, wheel: Path) -> Iterator[str]:
    """What is wrong with it beyond its schema: it describes this wheel and each package that it depends on."""
    described = json.loads(sbom.read_text())
    metadata = _metadata(wheel)
    root = described["metadata"]["component"]
    if (root["name"], root.get("version")) != (metadata["Name"], metadata["Version"]):
        yield f"describes {root['name']} {root.get('version')}"
    names = {component["bom-ref"]: component["name"] for component in described["components"]}
    (refs,) = (each.get("dependsOn", []) for each in described["dependencies"] if each["ref"] == root["bom-ref"])
    found = {canonicalize_name(names[ref]) for ref in refs}
    requirements = map(Requirement, metadata.get_all("Requires-Dist", []))
    # Without an extra.
    needed = {canonicalize_name(each.name) for each in requirements if not each.marker or each.marker.evaluate()}
    yield from (f"a dependency is not described: {name}" for name in sorted(needed - found))


def with_version(pyproject: str, wheel: Path) -> str:
    """The text of pyproject.toml, with the wheel's version where the build reads it from the package."""
    return pyproject.replace('dynamic = ["readme", "version"]', f'version = "{_metadata(wheel)["Version"]}"')


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))
