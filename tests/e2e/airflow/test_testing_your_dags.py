"""The example of docs/testing-your-dags.md, run as a user's own project: their folder, their pytest, their Airflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs/testing-your-dags.md").read_text()


@pytest.mark.e2e
def test_the_example_passes_as_it_stands(tmp_path: Path) -> None:
    files = re.findall(r"```python\n# (\S+)\n(.*?)```", DOCUMENT, re.DOTALL)
    for name, content in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (memory,) = re.findall(r"```python\n(@pytest.*?)```", DOCUMENT, re.DOTALL)
    with (tmp_path / "tests/conftest.py").open("a") as conftest:
        conftest.write(memory)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={**own, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
