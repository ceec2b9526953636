"""Many processes that use an empty warehouse for the first time, at once: as the tasks of a new deployment do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.store.errors import UnsupportedDatabase
from outbound_transfer.store.tables import GROUPS
from support.feed_pages import CURSOR, tables
from support.first_runs import (
    DRIVERS,
    Crowd,
    RunLocation,
    create_table,
    crowd,
    increment,
    load_feed,
    use_all_tables,
    use_tables,
)

PROCESSES = 8


@pytest.fixture(scope="module")
def processes() -> Iterator[Crowd]:
    with crowd(PROCESSES) as some:
        yield some


@pytest.fixture(params=[1, pytest.param(3, marks=pytest.mark.nightly)], ids="times={}".format)
def times(request: pytest.FixtureRequest) -> int:
    """How often processes meet in an empty database: the more, the more interleavings."""
    return int(request.param)


@pytest.fixture(params=DRIVERS)
def place(request: pytest.FixtureRequest, memory: Path) -> RunLocation:
    """An empty database of each kind."""
    driver = request.param
    if driver in ("sqlite", "duckdb"):
        return RunLocation(driver, memory / "warehouse")
    return RunLocation(driver, request.getfixturevalue("mariadb" if driver == "mysqlclient" else "postgres"))


def play_first_runs(processes: Crowd, place: RunLocation, prefix: str) -> None:
    # The feed first, and again at the end: its tables are there then, and the accounts are not.
    for group in GROUPS:
        assert processes.do(use_tables, place, prefix, group) == []
    assert processes.do(load_feed, place, prefix) == []
    assert place.hook().fetch(f"SELECT count(*) FROM {prefix}events") == [(3 * processes.size,)]


def test_tables_are_created_once(processes: Crowd, place: RunLocation, times: int) -> None:
    for number in range(times):
        play_first_runs(processes, place, f"first_{number}_")


def test_different_tables_are_created_at_once(processes: Crowd, place: RunLocation, times: int) -> None:
    """As when the feed and the transfers are loaded side by side."""
    for number in range(times):
        prefix = f"mixed_{number}_"
        assert processes.do(use_all_tables, place, prefix) == []


@pytest.mark.parametrize("driver", ["sqlite", "duckdb"])
@pytest.mark.parametrize("files", [8, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_file_is_created_once(processes: Crowd, driver: str, memory: Path, files: int) -> None:
    for number in range(files):
        place = RunLocation(driver, memory / f"warehouse {number}")
        assert processes.do(create_table, place) == []
        found = {name for (name,) in place.hook().fetch("SELECT name FROM sqlite_master")}
        assert found == {f"own_{process}" for process in range(PROCESSES)}
    left = {path.name for path in memory.iterdir() if path.suffix not in (".wal", ".shm", ".lock")}
    assert left == {f"warehouse {number}" for number in range(files)}


@pytest.mark.nightly
def test_fifty_at_once(place: RunLocation) -> None:
    with crowd(50) as processes:
        play_first_runs(processes, place, "first_")
        assert processes.do(use_all_tables, place, "mixed_") == []


# -------------------------------------------------------------------------------------------------------- DuckDB's file


@pytest.mark.nightly
def test_what_is_committed_is_not_lost(memory: Path) -> None:
    """Without a lock, about one of a thousand transactions is: DuckDB 2.0.0 reads the header, then locks the file."""
    place = RunLocation("duckdb", memory / "warehouse")
    place.hook().run("CREATE TABLE counter AS SELECT 0 AS number")
    with crowd(4) as processes:
        assert processes.do(increment, place, 1_500) == []
    assert place.hook().fetch("SELECT number FROM counter") == [(6_000,)]


def test_the_file_is_that_of_the_hook(memory: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(memory)
    monkeypatch.setenv("HOME", str(memory))
    for name in ("plain.duckdb", "~/in home.duckdb", "it's 100%? & #1.duckdb"):
        hook = RunLocation("duckdb", Path(name)).hook()
        assert tables(hook).get_or_create_cursor() == 0
        with closing(hook.get_conn()) as connection:
            assert connection.execute(CURSOR).fetchall() == [(0,)]
    files = {path.name for path in memory.iterdir() if path.suffix != ".lock"}
    assert files == {"in home.duckdb", "it's 100%? & #1.duckdb", "plain.duckdb"}


def test_a_file_that_cannot_be_created_is_named(memory: Path) -> None:
    with pytest.raises(OSError, match="no folder/warehouse"):
        tables(RunLocation("duckdb", memory / "no folder" / "warehouse").hook()).get_or_create_cursor()


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(UnsupportedDatabase, match="no file of DuckDB"):
        tables(RunLocation("duckdb", Path(":memory:shared")).hook()).get_or_create_cursor()
