"""A real Prometheus for tests, of Debian's package; a test that needs it fails where it cannot be had."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.airflow_stack.stack import free_ports
from support.repository import REPOSITORY
from support.timeouts import eventually

#: How much faster time passes in the rules of a test.
SPEED = 360


def find_program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`."""
    unpacked = REPOSITORY / ".venv/prometheus/usr/bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    assert found, f"The tests of the alerts need {name}: run `make .prometheus`."
    return found


def faster(rules: str) -> str:
    """Return rules with all their durations divided by :data:`SPEED`."""
    seconds = {"m": 60, "h": 3_600, "d": 86_400}

    def divided(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) * seconds[match[3]] * 1_000 // SPEED}ms"

    return re.sub(r"(\[|offset |for: )(\d+)([mhd])\b", divided, rules)


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}") as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression, now."""
        return list(self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))["result"])

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}


@contextmanager
def running_prometheus(folder: Path, rules: str, target: int) -> Iterator[Prometheus]:
    """Run a server that scrapes a port of this machine five times a second."""
    (folder / "rules.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\n"
        "rule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: statsd, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    (port,) = free_ports(1)
    command = [
        find_program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    server = Prometheus(port)

    def is_scraping() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-2_000:]
        with suppress(OSError):
            return bool(server.query("up == 1"))
        return False

    try:
        eventually(is_scraping, 0.1)
        yield server
    finally:
        process.kill()
        process.wait()
