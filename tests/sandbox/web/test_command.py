"""How the command lets people in: a password that is given or generated, and one that a restart keeps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.timeouts import eventually

VARIABLE = "OUTBOUND_TRANSFER_SANDBOX_PASSWORD"


@contextmanager
def running(tmp_path: Path, *arguments: str, **environment: str) -> Iterator[tuple[str, str]]:
    """The command's address and the password that it printed."""
    ready = tmp_path / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "outbound_transfer_sandbox", "--port", "0", "--ready-file", str(ready)]
    command += ["--data", str(tmp_path / "data"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        try:
            lines = iter(process.stdout.readline, "")
            password = next(found[1] for line in lines if (found := re.match(r"\s+password\s+(.*)", line)))
            eventually(lambda: ready.exists() or process.poll() is not None)
            yield json.loads(ready.read_text())["base_url"], password
        finally:
            process.terminate()


def signs_in(base_url: str, password: str) -> int:
    """Tries a password for the administrator; the answer's status."""
    with httpx.Client(base_url=base_url, follow_redirects=True) as http:
        token = re.search('name="csrf" value="([^"]+)"', http.get("/sign-in").text)[1]
        form = {"csrf": token, "user": "admin@example.com", "password": password}
        return http.post("/sign-in", data=form).status_code


def test_a_given_password(tmp_path: Path) -> None:
    with running(tmp_path, **{VARIABLE: "from the environment"}) as (base_url, shown):
        assert signs_in(base_url, shown) == 200
    with running(tmp_path) as (base_url, shown):
        assert shown == "unchanged since an earlier run; --password sets another"
        assert signs_in(base_url, "from the environment") == 200
    with running(tmp_path, "--password", "an option", **{VARIABLE: "ignored"}) as (base_url, _):
        assert signs_in(base_url, "an option") == 200
        assert signs_in(base_url, "ignored") == 403
    assert b"an option" not in (tmp_path / "data/sandbox.sqlite").read_bytes()
