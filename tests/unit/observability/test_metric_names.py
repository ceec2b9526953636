"""Metrics: their names, their tags and their table in the documentation."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from outbound_transfer.observability import metrics
from support.repository import REPOSITORY
from support.statsd import stats_to


@pytest.fixture
def statsd() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        with stats_to(server.getsockname()[1]):
            yield server


def received(server: socket.socket) -> tuple[str, dict[str, str]]:
    name, *tags = server.recv(65_535).decode().removeprefix("airflow.").partition(":")[0].split(",")
    return name, dict(tag.split("=") for tag in tags)


def test_tags_hold_nothing_that_would_be_read_as_another_and_long_ones_are_sent(statsd: socket.socket) -> None:
    metrics.REQUESTS.emit(operation="list files", status="none", conn_id="a,b=c:1|c\n/é")
    name, tags = received(statsd)
    assert (name, tags["operation"], tags["conn_id"]) == (metrics.REQUESTS.full_name, "list_files", "a_b_c_1_c___")
    for metric in metrics.METRICS:  # a connection's id may have 250 characters, a host's name 253
        metric.emit(1, **(dict.fromkeys(metric.tags, "x" * 253) | {"operation": "list_files", "status": "none"}))
        assert received(statsd)[0] == metric.full_name


def test_the_documentation_has_the_table() -> None:
    rows = [
        f"| `{metric.full_name}` | {metric.type.value}, {metric.unit} "
        f"| {', '.join(f'`{tag}`' for tag in metric.tags)} | {metric.description} |"
        for metric in metrics.METRICS
    ]
    table = "\n".join(("| name | kind | tags | emitted when |", "|---|---|---|---|", *rows))
    assert table in (REPOSITORY / "docs/observability.md").read_text()


def test_names_are_legal_everywhere() -> None:
    names = [metric.full_name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"outbound_transfer\.[a-z_]{1,60}", name)] == []
    assert len(names) == 14
