"""A sample of `make test-crash-ingest`: real processes, really killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.crash_ingest.kills import WORKS, kill_everywhere
from resilience.crash_ingest.targets import databases, target_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "work", "moment", "every"),
    [
        *[("sqlite", "ingest", moment, 11) for moment in ("before", "during", "after")],
        *[(name, "ingest", "after", 17) for name in ("duckdb", "iceberg", "psycopg", "mysqlclient")],
        *[(name, "erase", "after", 9) for name in ("sqlite", "duckdb", "psycopg", "mysqlclient")],
        ("iceberg", "reset", "after", 7),
    ],
)
def test_a_kill_leaves_whole_pages_and_the_next_runs_do_the_rest(
    memory: Path, name: str, work: str, moment: Any, every: int
) -> None:
    with databases() as database_of:
        account = kill_everywhere(target_of(name, memory, database_of), moment, every, WORKS[work])
    assert account.wrong == []
    assert account.kills > 2
    assert work != "ingest" or len(account.left) > 1, "every kill came before the first page was loaded"
