"""A sample of `python -m resilience.fuzz.feed_fuzz`, and that it can find something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.transfers.feed_ingest import FeedIngest
from resilience.crash_ingest.targets import SQL_WAREHOUSES, warehouse_of
from resilience.fuzz.feed_fuzz import Report, fuzz_feed

pytestmark = pytest.mark.slow

#: Of the slower ones, fewer: each is the same ingestion.
SEEDS = {"sqlite": range(1, 9), "duckdb": range(20, 22)}

#: Feeds in which a safeguard that is taken out must be missed.
MOST = 60


@pytest.mark.parametrize("name", SQL_WAREHOUSES)
def test_a_hostile_feed_loses_nothing_doubles_nothing_and_stops_nobody(
    name: str, memory: Path, request: pytest.FixtureRequest
) -> None:
    def database_of(name: str) -> Any:
        return request.getfixturevalue("mariadb" if name == "mysqlclient" else "postgres")

    report = Report()
    for seed in SEEDS.get(name, range(100, 103)):
        fuzz_feed(warehouse_of(name, memory, database_of), seed, report)
    assert report.wrong == []
    assert report.counts["answers"] > 10
    assert any(what.startswith("fault") for what in report.counts)


def test_a_cursor_that_is_believed_at_once_is_noticed(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeedIngest, "_accepts_cursor", lambda self, page: True)
    report, target = Report(), warehouse_of("sqlite", memory, lambda _: None)
    for seed in range(MOST):
        fuzz_feed(target, seed, report)
        if report.wrong:
            return
    pytest.fail(f"{MOST} feeds were read without it, and nobody noticed")
