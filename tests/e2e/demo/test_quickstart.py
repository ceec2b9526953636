"""The commands of docs/quickstart.md, run as they stand, but for the port and the folder of Airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.airflow_stack.stack import free_ports
from support.repository import REPOSITORY

COMMANDS = re.findall(r"```sh\n(.*?)```", (REPOSITORY / "docs/quickstart.md").read_text(), re.DOTALL)
VENV = Path(sys.executable).parent


@pytest.fixture
def port() -> int:
    (free,) = free_ports(1)
    return free


@pytest.fixture
def shell(port: int, tmp_path: Path) -> dict[str, object]:
    """What every command is run with: no settings of another Airflow, and a checkout that holds no state."""
    for name in ("dags", "plugins"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(VENV)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))}
    return {"cwd": tmp_path, "env": env | {"NO_PROXY": "127.0.0.1"}}


def adapted(command: str, port: int) -> str:
    return command.replace("make setup\n", "").replace("8085", str(port))


@pytest.fixture
def sandbox(shell: dict[str, object], port: int) -> Iterator[str]:
    command = adapted(COMMANDS[1], port).strip() + f" --port {port}"
    with subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=subprocess.DEVNULL, **shell) as process:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                httpx.get(f"{url}/_sandbox/state", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
        process.terminate()


@pytest.mark.e2e
def test_a_transfer_is_delivered_and_picked_up(sandbox: str, shell: dict[str, object], port: int) -> None:
    assert len(COMMANDS) == 4
    with subprocess.Popen(
        ["bash", "-ec", adapted(COMMANDS[2], port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **shell,
    ) as run:
        sent = {}
        for _ in range(600):
            sent = {row["kind"] for row in httpx.get(f"{sandbox}/_sandbox/ledger", trust_env=False).json()}
            if "emailed" in sent or run.poll() is not None:
                break
            time.sleep(0.5)
        if "emailed" in sent:
            subprocess.run(["bash", "-ec", adapted(COMMANDS[3], port)], check=True, **shell)
        output, _ = run.communicate(timeout=300)

    assert run.returncode == 0, output
    ledger = json.loads(httpx.get(f"{sandbox}/_sandbox/ledger", trust_env=False).text)
    assert [row["recipient"] for row in ledger if row["kind"] == "emailed"] == ["ann@example.com"], output
    assert "picked up by 1 of 1" in output
