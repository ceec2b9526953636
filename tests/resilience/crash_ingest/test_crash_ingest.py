"""A sample of `make test-crash-ingest`: real processes, really killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.crash_ingest.ingest import MOMENTS, Account, kill_everywhere, target_of
from support import mariadb as mariadb_support
from support.postgres import Database

pytestmark = pytest.mark.slow


def no_server(name: str) -> Any:
    raise AssertionError(name)


def check(account: Account) -> None:
    assert account.wrong == []
    assert account.kills > 3
    assert len(account.left) > 1, "every kill came before the first page was landed"


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_ingest_leaves_whole_pages_and_the_next_run_lands_the_rest(tmp_path: Path, moment: str) -> None:
    check(kill_everywhere(target_of("sqlite", tmp_path, no_server), moment, every=11))


def test_so_it_is_in_duckdb(tmp_path: Path) -> None:
    check(kill_everywhere(target_of("duckdb", tmp_path, no_server), "after", every=13))


def test_so_it_is_in_an_iceberg_table(tmp_path: Path) -> None:
    check(kill_everywhere(target_of("iceberg", tmp_path, None), "after", every=23))


@pytest.mark.parametrize("name", ["psycopg", "portable"])
def test_so_it_is_in_postgresql(name: str, tmp_path: Path, postgres: Database) -> None:
    check(kill_everywhere(target_of(name, tmp_path, lambda _: postgres), "after", every=17))


@pytest.mark.parametrize("name", ["mysqlclient"])
def test_so_it_is_in_mariadb(name: str, tmp_path: Path, mariadb: mariadb_support.Database) -> None:
    check(kill_everywhere(target_of(name, tmp_path, lambda _: mariadb), "after", every=17))
