"""The hook of `.pre-commit-config.yaml` refuses a subject that says a state instead of a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.repository import REPOSITORY

HOOKS = [
    hook
    for repo in yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repo["hooks"]
]
(ENTRY,) = (hook["entry"] for hook in HOOKS if hook.get("stages") == ["commit-msg"])


@pytest.mark.parametrize(
    ("subject", "status"),
    [
        ("store: insert PostgreSQL pages as JSON", 0),
        ("client, files: process one chunk at a time", 0),
        ("Merge branch 'store'", 0),
        ("store: inserted PostgreSQL pages as JSON", 1),
        ("store: inserts pages as JSON", 1),
        ("insert pages as JSON", 1),
        ("store: insert pages as JSON.", 1),
        (f"store: insert {'x' * 60}", 1),
        ("", 1),
    ],
)
def test_a_subject_says_what_a_commit_changes(subject: str, status: int, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nWhy.\n")
    command = ENTRY.replace(".venv/bin/python", sys.executable).split(" ")
    assert subprocess.run([*command, message], cwd=REPOSITORY, check=False).returncode == status
