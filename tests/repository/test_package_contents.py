"""What is built holds both packages whole, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.package_contents import REPOSITORY, faults_of_sdist, faults_of_wheel


def test_wheel_and_source_archive_are_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", tmp_path]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert list(faults_of_wheel(wheel)) == []
    assert list(faults_of_sdist(sdist)) == []
