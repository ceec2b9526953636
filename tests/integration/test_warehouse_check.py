"""``outbound-transfer-warehouse-check`` on real databases, and on one that breaks its promises."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.cli.warehouse_check.check import RACES, WarehouseCheck
from outbound_transfer.cli.warehouse_check.command import main
from outbound_transfer.cli.warehouse_check.processes import ProcessFailed
from outbound_transfer.warehouse.database import Warehouse
from support.postgres import Database
from support.repository import REPOSITORY
from support.warehouses import Hook, InventedSqlite

COMMAND = [sys.executable, "-m", "outbound_transfer.cli.warehouse_check", "--sql-conn-id", "warehouse"]

pytestmark = pytest.mark.slow  # each starts many processes

PREFIX = "outbound_transfer_check_1_"


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The command handles SIGTERM in its process, which here is that of the tests; its own processes inherit what is
    ignored, as SIGINT is in a shell's background.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(connection: dict[str, Any] | str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], env=environment(connection), capture_output=True, text=True, timeout=250)


def environment(connection: dict[str, Any] | str) -> dict[str, str]:
    value = connection if isinstance(connection, str) else json.dumps(connection)
    return os.environ | {"AIRFLOW_CONN_WAREHOUSE": value}


def sqlite_tables(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def table(printed: str) -> dict[str, tuple[int, int]]:
    """Return runs and wrong ones, by check."""
    rows = re.findall(r"^(\w[\w ]+?) +(\d+) +(\d+)$", printed, re.MULTILINE)
    return {name: (int(runs), int(wrong)) for name, runs, wrong in rows}


def test_postgresql_loses_and_doubles_nothing(postgres: Database) -> None:
    done = run(postgres.airflow_connection, "--kills", "6", "--readers", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert table(done.stdout) == {
        "undisturbed": (1, 0),
        "killed before a step": (2, 0),
        "killed during a step": (2, 0),
        "killed after a step": (2, 0),
        "3 readers at once": (RACES, 0),
    }
    assert "Nothing was lost, doubled or left half done." in done.stdout
    with closing(postgres.connect(autocommit=True)) as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == []


def test_the_tables_are_made_in_the_schema_that_is_named(postgres: Database) -> None:
    done = run(postgres.airflow_connection, "--schema", "nowhere", "--kills", "1")
    assert done.returncode == 1
    assert 'schema "nowhere" does not exist' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_the_guard_refuses_is_refused_in_words() -> None:
    done = run({"conn_type": "trino", "host": "localhost"})
    assert done.returncode == 1
    assert "Trino: each of its statements commits by itself" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--kills", "0"], ["--readers", "many"], ["--kills", "-3"]])
def test_a_count_is_a_whole_number(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--sql-conn-id", "warehouse", *words])
    assert stopped.value.code == 2
    assert "is not a whole number" in capsys.readouterr().err


def test_a_connection_that_does_not_exist_is_named() -> None:
    with pytest.raises(SystemExit, match="connection 'nowhere' cannot be used: "):
        main(["--sql-conn-id", "nowhere"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("line", ["An ingestion ", "Kill 3 ", "Race 2 "])
def test_an_interrupted_check_leaves_no_table(memory: Path, line: str, number: signal.Signals) -> None:
    file = memory / "warehouse.db"
    process = subprocess.Popen(
        [*COMMAND, "--kills", "3"],
        env=environment({"conn_type": "sqlite", "host": str(file)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for each in process.stdout:
            if each.startswith(line):
                break
        process.send_signal(number)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "The tables of the check are dropped" in printed
    assert errors.strip() == "Interrupted."
    assert sqlite_tables(file) == []


class CommitsEachStatement:
    """A connection of SQLite that commits whatever it is told, though it says otherwise."""

    def __init__(self, file: Path) -> None:
        self.__dict__["inner"] = sqlite3.connect(file, isolation_level=None, timeout=30)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Ignore what the dialect sets."""

    def cursor(self) -> Any:
        return _WithoutTransactions(self.inner.cursor())


class _WithoutTransactions:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def execute(self, statement: str, *parameters: Any) -> Any:
        return None if statement.startswith("BEGIN") else self.inner.execute(statement, *parameters)


def test_a_database_that_commits_each_statement_is_found_out(memory: Path) -> None:
    file, lines = memory / "warehouse.db", []
    warehouse = Warehouse(Hook("sqlite", lambda: CommitsEachStatement(file), "?"), prefix=PREFIX)
    findings = WarehouseCheck(warehouse, lines.append).run(kills=24, readers=2)
    wrong = [each for finding in findings for each in finding.wrong]
    assert any("killed" in each and "events" in each for each in wrong), wrong
    assert findings[0].wrong == []
    assert sqlite_tables(file) == []
    assert lines[-1] == "The tables of the check are dropped …"


def test_a_database_that_fails_the_probe_cannot_be_checked(memory: Path) -> None:
    file = memory / "warehouse.db"
    warehouse = Warehouse(Hook(InventedSqlite.name, lambda: CommitsEachStatement(file), "?"), prefix=PREFIX)
    with pytest.raises(ProcessFailed, match="UnsupportedWarehouse: .* commits by itself"):
        WarehouseCheck(warehouse, print).run(kills=1, readers=1)
    assert sqlite_tables(file) == []


def test_the_command_is_installed() -> None:
    script = Path(sys.executable).parent / "outbound-transfer-warehouse-check"
    done = subprocess.run([script, "--help"], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert "--sql-conn-id" in done.stdout


def test_sqlite_loses_and_doubles_nothing(memory: Path) -> None:
    file = memory / "warehouse.db"
    warehouse = Warehouse(Hook("sqlite", lambda: sqlite3.connect(file), "?"), prefix=PREFIX)
    findings = WarehouseCheck(warehouse, print).run(kills=12, readers=3)
    assert [each for finding in findings for each in finding.wrong] == []
    assert sum(finding.runs for finding in findings) == 1 + 12 + RACES
