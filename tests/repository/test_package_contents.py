"""What is built holds both packages whole, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.package_contents import REPOSITORY, faults_of_sdist, faults_of_wheel


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
