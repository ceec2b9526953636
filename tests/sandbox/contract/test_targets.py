"""One suite, two targets: these very tests run against an account that they know by its address and keys alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.account import Account, account, differences

pytestmark = pytest.mark.control

HERE = Path(__file__).parent
ADDRESS, KEY, EVENT_KEY = (f"OUTBOUND_TRANSFER_{name}" for name in ("BASE_URL", "API_KEY", "EVENT_API_KEY"))


@pytest.mark.slow
def test_the_suite_passes_against_an_account(command: Callable[..., Any], tmp_path: Path) -> None:
    """The command stands for the account; its rates are lifted first, for nobody wants to wait for them here."""
    with command("--transfer-key", "acc_of_ann", "--event-key", "obs_of_the_account") as process:
        ready = process.ready
        administrator = Sandbox(ready["base_url"], ready["transfer_api_key"], ready["event_api_key"])
        administrator.patch_account(requests_per_window=10**9, feed_interval_seconds=0)
        environment = {ADDRESS: ready["base_url"], KEY: "acc_of_ann", EVENT_KEY: "obs_of_the_account"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE)],
            cwd=HERE.parents[2],
            env={**os.environ, **environment, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis")},
            capture_output=True,
            text=True,
        )
        made = len(administrator.requests())
        administrator.close()
    assert done.returncode == 0, done.stdout + done.stderr
    passed, deselected = map(int, re.findall(r"(\d+) (?:passed|deselected)", done.stdout.splitlines()[-1]))
    assert passed > 200
    assert deselected > 150
    assert made > passed, "its calls reached the account"


def test_an_account_is_named_by_the_environment() -> None:
    assert account({}) is None
    named = {ADDRESS: "https://account.example.com/", KEY: "k", EVENT_KEY: "obs_k"}
    assert account(named) == Account("https://account.example.com", "k", "obs_k")
    with pytest.raises(KeyError, match=KEY):
        account({ADDRESS: "https://account.example.com"})


def test_every_difference_on_record_names_a_test() -> None:
    for difference in differences():
        file, name = re.fullmatch(r"(test_\w+\.py)::(test_\w+)(?:\[.*\])?", difference.test).groups()
        assert re.search(rf"^def {name}\(", (HERE / file).read_text(), re.MULTILINE), difference
        assert difference.expected != difference.observed


GOOD = {"seen": "2026-01-31", "test": "test_send.py::test_x", "expected": "409", "observed": "200"}


def test_the_form_of_a_difference() -> None:
    (difference,) = differences(json.dumps([GOOD]))
    assert difference.seen.isoformat() == "2026-01-31"
    for wrong in ({**GOOD, "seen": "lately"}, {**GOOD, "why": "?"}, {"seen": "2026-01-31"}):
        with pytest.raises((ValueError, TypeError)):
            differences(json.dumps([wrong]))
