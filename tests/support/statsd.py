"""Airflow's own StatsD client, set up as the task runner does it, and what receives its metrics for Prometheus."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from support.threads import serving


def stats_environment(port: int) -> dict[str, str]:
    """What lets an Airflow send its metrics to a port of this machine."""
    options = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(port), "INFLUXDB_ENABLED": "True"}
    return {f"AIRFLOW__METRICS__STATSD_{name}": value for name, value in options.items()}


@contextmanager
def stats_to(port: int) -> Iterator[None]:
    """Let this process send its metrics to a port."""
    opened: list[Any] = []

    def factory() -> Any:
        opened.append(stats_utils.get_stats_factory()())
        return opened[-1]

    try:
        with mock.patch.dict(os.environ, stats_environment(port)):
            stats.initialize(factory=factory, export_legacy_names=False)
            yield
    finally:
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        for logger in opened:
            logger.statsd.close()


class StatsdExporter:
    """What Prometheus' statsd-exporter makes of lines with InfluxDB's tags, for mappings of plain names."""

    def __init__(self, mapping: str) -> None:
        self._rules = {rule["match"]: rule for rule in yaml.safe_load(mapping)["mappings"]}
        self._values: defaultdict[str, float] = defaultdict(float)
        self._expires: dict[str, float] = {}

    def take(self, line: str) -> None:
        """Add one line."""
        name, value, kind = re.fullmatch(r"([^:]+):([^|]+)\|(\w+)", line).groups()
        name, *tags = name.split(",")
        rule = self._rules.get(name, {"name": re.sub(r"\W", "_", name)})
        labels = "{" + ",".join('{}="{}"'.format(*tag.split("=")) for tag in tags) + "}"
        if kind == "ms":
            self._values[f"{rule['name']}_sum{labels}"] += float(value) / 1_000
            self._values[f"{rule['name']}_count{labels}"] += 1
            return
        series = rule["name"] + labels
        self._values[series] = float(value) + (self._values[series] if kind == "c" else 0)
        if "ttl" in rule:
            self._expires[series] = time.monotonic() + int(rule["ttl"].rstrip("s"))

    def exposition(self) -> bytes:
        """Return what a scrape returns."""
        for series in [each for each, until in self._expires.items() if until < time.monotonic()]:
            del self._expires[series], self._values[series]
        return "".join(f"{series} {value}\n" for series, value in self._values.items()).encode()


@contextmanager
def running_exporter(mapping: Path) -> Iterator[tuple[int, int]]:
    """Run :class:`StatsdExporter`: Debian 12 has no package of Prometheus' own.

    :return: the port for StatsD and the port to scrape.
    """
    exporter = StatsdExporter(mapping.read_text())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BlockingIOError):
                while lines := statsd.recv(65_535).decode():
                    for line in lines.splitlines():
                        exporter.take(line)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(exporter.exposition())

        def log_message(self, *_: object) -> None: ...

    web = HTTPServer(("127.0.0.1", 0), Handler)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd, serving(web):
        statsd.bind(("127.0.0.1", 0))
        statsd.setblocking(False)
        yield statsd.getsockname()[1], web.server_port
