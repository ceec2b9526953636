"""Fixtures of real databases. What is heavy to import is imported when a test asks for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from support import mariadb as mariadb_support
from support.postgres import Database, running_server
from support.timeouts import eventually

if TYPE_CHECKING:
    from support.warehouses import Hook


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Database]:
    with running_server() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Database) -> Iterator[Database]:
    with fresh_database(postgres_server) as database:
        yield database


@contextmanager
def fresh_database(postgres_server: Database) -> Iterator[Database]:
    """A fresh database of a server; whoever leaves a connection to it open fails."""
    name = f"test_{uuid.uuid4().hex}"
    with closing(postgres_server.connect(autocommit=True)) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield Database(postgres_server.host, name)
            query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
            # A server process ends a little after its connection.
            eventually(lambda: connection.execute(query).fetchone()[0] == 0)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[mariadb_support.Database]:
    with mariadb_support.running_server() as server:
        yield server


@pytest.fixture
def mariadb(mariadb_server: mariadb_support.Database) -> Iterator[mariadb_support.Database]:
    name = f"test_{uuid.uuid4().hex}"
    with closing(mariadb_server.connect(autocommit=True)) as connection, closing(connection.cursor()) as tx:
        tx.execute(f"CREATE DATABASE {name}")
        try:
            yield replace(mariadb_server, name=name)

            def is_left() -> bool:
                tx.execute(f"SELECT count(*) FROM information_schema.processlist WHERE db = '{name}'")
                return tx.fetchall() == ((0,),)

            eventually(is_left)
        finally:
            tx.execute(f"DROP DATABASE {name}")


@pytest.fixture
def single_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AIRFLOW_HOME of an Airflow on one machine, as its tasks see it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "airflow.db").touch()
    monkeypatch.setenv("AIRFLOW_HOME", str(home))
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    return home


@pytest.fixture
def several_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder that no disk is waited for: DuckDB writes its file anew whenever it is closed."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def hook_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Hook]:
    from support.warehouses import DRIVERS, Hook, duckdb_hook, sqlite_hook

    def make(name: str) -> Hook:
        if name == "sqlite":
            return sqlite_hook(tmp_path / "warehouse.db")
        if name == "duckdb":
            return duckdb_hook(request.getfixturevalue("memory") / "warehouse.duckdb")
        if name == "mysqlclient":
            mariadb: mariadb_support.Database = request.getfixturevalue("mariadb")
            return Hook("mysql", lambda: mariadb.connect(name))
        database: Database = request.getfixturevalue("postgres")
        return Hook("postgresql", lambda: database.connect(**DRIVERS[name]))

    return make


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "psycopg2", "mysqlclient"])
def warehouse_hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    return hook_of(request.param)
