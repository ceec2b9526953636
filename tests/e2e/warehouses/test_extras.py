"""The extras of destinations, installed beside Airflow under the project's constraints, bring the pinned providers.

A resolver may choose a provider of years ago instead, if only that agrees with the other packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import REPOSITORY

pytestmark = pytest.mark.slow

UV = Path(sys.executable).with_name("uv")

#: The provider of each extra, and the lowest version that is not outdated.
PROVIDERS = {
    "postgres": ("postgres", 7),
    "mysql": ("mysql", 6),
    "iceberg": ("apache-iceberg", 2),
    "s3": ("amazon", 9),
    "gcs": ("google", 22),
}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_extras_bring_the_pinned_providers(python: str, tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.in"
    package = f"airflow-provider-outbound-transfer[{','.join(PROVIDERS)}] @ {REPOSITORY.as_uri()}"
    requirements.write_text(f"apache-airflow\n{package}\n")
    constraints = (REPOSITORY / "constraints.txt").read_text()

    resolved = _resolve(requirements, python)

    for provider, lowest in PROVIDERS.values():
        name = f"apache-airflow-providers-{provider}"
        assert int(resolved[name].split(".")[0]) >= lowest
        assert resolved[name] in re.findall(rf"^{name}==(\S+)", constraints, re.MULTILINE)


def _resolve(requirements: Path, python: str) -> dict[str, str]:
    # Without the project's settings, as at a user's.
    command = [UV, "pip", "compile", "--quiet", "--no-config", "--python-version", python, requirements]
    pins = ["--constraint", REPOSITORY / "constraints.txt"]
    done = subprocess.run([*command, *pins], cwd=requirements.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", done.stdout, re.MULTILINE))
