"""The database of an Airflow connection, through SQLAlchemy: a short connection for each transaction."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect, PGIdentifierPreparer
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, ProgrammingError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed, wait_random
from tenacity.wait import wait_base

from outbound_transfer.observability import metrics
from outbound_transfer.store.errors import UnsupportedDatabase, UnusableDatabase, WarehouseBusy, code_of, words_of
from outbound_transfer.store.rows import utc_now
from outbound_transfer.store.types import Time

T = TypeVar("T")

#: Seconds to wait for other sessions. Other programs may have a file of DuckDB open for longer.
_TIMEOUTS: Final = {"duckdb": 120.0}

#: What is stored.
Use: TypeAlias = Literal["events or transfers", "deliveries"]
_POSSIBLE: Final[dict[Use, str]] = {
    "events or transfers": "PostgreSQL, MySQL, MariaDB, SQLite or DuckDB; docs/warehouses.md says how others get them",
    "deliveries": "PostgreSQL, MySQL, MariaDB or SQLite",
}

#: Databases in SQLAlchemy, by the types of connections and the dialects of hooks.
_DATABASES: Final = {name: name for name in ("postgresql", "mysql", "sqlite", "duckdb")} | {
    "postgres": "postgresql",
    "mariadb": "mysql",
}

#: URLs, by the module of a driver's connections.
_URLS: Final = {
    "psycopg": "postgresql+psycopg://",
    "psycopg2": "postgresql+psycopg2://",
    "MySQLdb": "mysql+mysqldb://",
    "sqlite3": "sqlite://",
    "_duckdb": "outbound_transfer_duckdb://",  # the package duckdb-engine has the shorter name
    "duckdb": "outbound_transfer_duckdb://",
}

#: Codes of errors; words where a database has no codes. Another session has changed or made the same, or does: a
#: deadlock, a serialization, a key, a record, a table, an index.
_CONFLICTS: Final = ("40001", "40P01", "42P07", "23505", 1213, 1062, 1020, 1412, 1684, 1050, 1061, "database is locked")

#: A schema does not exist; a right is missing.
_MISSING: Final = ("3F000", 1049, "unknown database", "Schema with name")
_FORBIDDEN: Final = ("42501", 1044, 1142, "readonly database", "read-only mode")

#: Classes of SQLSTATE, and numbers, of errors that the values of a row may cause, whatever class their driver gives
#: them: data, constraints, limits of size and depth, triggers, limits of memory; a packet, a trigger, a partition.
_OF_VALUES: Final = ("22", "23", "54", "P0", "XX", 1153, 1526, 1644, 1748, 3819, 4025)

#: A file of DuckDB is open elsewhere.
_BUSY: Final = ("lock on file", "Unique file handle conflict")

#: The time in a statement, where a server has a clock.
_CLOCKS: Final = {"postgresql": "clock_timestamp()", "mysql": "SYSDATE(6)"}


class HookLike(Protocol):
    """The part of Airflow's ``DbApiHook`` that is used here."""

    @property
    def dialect_name(self) -> str: ...

    def get_conn(self) -> Any: ...

    def get_uri(self) -> str: ...


def _dialect_of(hook: HookLike) -> str:
    return re.split("[+.]", hook.dialect_name)[0]  # some hooks name the driver, too


class Database:
    """The database of a hook, which opens each connection with all that the Airflow connection says.

    :param timeout: seconds to wait for other sessions; default: those of the database.
    :raises UnsupportedDatabase: the provider does not store this there.
    """

    def __init__(self, hook: HookLike, use: Use, *, timeout: float | None = None) -> None:
        # The type of the connection first: other hooks may need an account to name their dialect, and Redshift's may
        # be PostgreSQL's.
        kind = getattr(hook, "conn_type", None) or _dialect_of(hook)
        name = _DATABASES.get(kind)
        if not name or name != _DATABASES.get(_dialect_of(hook)) or (name == "duckdb" and use == "deliveries"):
            raise UnsupportedDatabase(f"No {use} are stored in {kind}: name a connection of one of {_POSSIBLE[use]}")
        self.name, self._hook = name, hook
        self.timeout = _TIMEOUTS.get(name, 30.0) if timeout is None else timeout
        self._engine: sa.Engine | None = None

    def is_there(self) -> bool:
        """Return whether a file of SQLite or DuckDB exists; ``FileNotFoundError``: its folder is missing."""
        if self.name not in ("sqlite", "duckdb"):
            return True
        file = self._find_file()
        if file and not file.parent.is_dir():
            raise FileNotFoundError(f"the folder of the file {file} does not exist")
        return file is None or file.exists()

    def _find_file(self) -> Path | None:
        uri = self._hook.get_uri()
        # All that follows is the path for DuckDB, and for SQLite what comes before the parameters.
        path = uri.removeprefix("duckdb:///") if self.name == "duckdb" else sa.make_url(uri).database or ""
        return Path(path).expanduser().resolve() if path and ":" not in path else None

    @contextmanager
    def begin(self, *, reads_only: bool = False) -> Iterator[sa.Connection]:
        """Open a transaction on a connection of its own; one that ``reads_only`` blocks no writer of a SQLite file."""
        with self._file_lock() if self.name == "duckdb" else nullcontext():
            self._engine = engine = self._engine or self._make_engine()
            with engine.execution_options(reads_only=reads_only).begin() as tx:
                yield tx

    def retry(self, change: Callable[[], T]) -> T:
        """Run a transaction, again if another session makes the same row or table, or changes the same row first."""
        # At random, so that two sessions do not stay in step.
        return _retrying(_is_conflict, wait_random(0.01, 0.1), seconds=5.0)(change)

    def now(self, tx: sa.Connection) -> datetime:
        """Return the time of the server, as the clocks of workers differ; of this machine, where there is none."""
        clock = _CLOCKS.get(self.name)
        return tx.execute(sa.select(sa.literal_column(clock, Time()))).scalar_one() if clock else utc_now()

    def create_tables(self, tables: Sequence[sa.Table]) -> None:
        """Create the missing tables, of one schema; ``UnusableDatabase``: that is impossible."""
        where = f"the schema '{tables[0].schema}'" if tables[0].schema else "the connection's schema"
        try:
            self.retry(lambda: self._create_missing(tables))
        except DBAPIError as error:
            if _is_one_of(error, _MISSING):
                raise UnusableDatabase(f"There is no place for the tables: create {where}") from error
            if _is_one_of(error, _FORBIDDEN):
                raise UnusableDatabase(f"The user may not create tables in {where}: grant that right") from error
            raise

    def _create_missing(self, tables: Sequence[sa.Table]) -> None:
        with self.begin() as tx:
            there = sa.inspect(tx)
            found = [each for each in tables if there.has_table(each.name, each.schema)]
            for table in found:
                _check_columns(tx, table)
            if len(found) == len(tables):  # no right to create is needed
                return
            if self.name == "postgresql":  # two sessions that create one table at the same time collide in the catalog
                tx.exec_driver_sql("SELECT pg_advisory_xact_lock(8029759185026510692)")
            elif self.name == "sqlite":  # whose readers then block no writer; a transaction cannot set that
                for statement in ("COMMIT", "PRAGMA journal_mode = WAL", "BEGIN IMMEDIATE"):
                    tx.exec_driver_sql(statement)
            for table in tables:
                table.kwargs["mysql_row_format"] = "DYNAMIC"  # in others, the keys are too long for an index
                table.create(tx, checkfirst=True)

    def _make_engine(self) -> sa.Engine:
        """Return an engine for the driver of the hook; its first connection, which tells the driver, is used first."""
        opened = self._connect()
        driver, first = type(opened).__module__.partition(".")[0], iter([opened])
        if driver not in _URLS:
            opened.close()
            raise UnsupportedDatabase(f"The driver {driver} is not supported: use psycopg, psycopg2 or mysqlclient")

        def connect() -> Any:
            if (connection := next(first, None)) is None:
                connection = self._connect()
            try:
                return self._prepare(driver, connection)
            except BaseException:
                connection.close()
                raise

        options: dict[str, Any] = {"poolclass": sa.NullPool, "hide_parameters": True}
        if self.name in ("postgresql", "duckdb"):
            options |= {"json_serializer": _as_text, "json_deserializer": _as_text}
        if self.name == "postgresql":
            options["isolation_level"] = "READ COMMITTED"
        engine = sa.create_engine(_URLS[driver], creator=connect, **options)
        sa.event.listen(engine, "begin", self._on_begin)
        return engine

    def _connect(self) -> Any:
        try:
            return self._wait(self._hook.get_conn)
        except Exception:
            conn_id = getattr(self._hook, getattr(self._hook, "conn_name_attr", ""), "none")
            metrics.DATABASE_FAILURES.emit(sql_conn_id=conn_id)
            raise

    def _prepare(self, driver: str, connection: Any) -> Any:
        """Undo what the extra of a connection says of rows, and take nothing from the server's defaults."""
        if driver == "psycopg":
            from psycopg import rows
            from psycopg.types import json

            connection.row_factory = rows.tuple_row
            json.set_json_dumps(_as_text, connection)
            json.set_json_loads(_as_text, connection)
        elif driver == "psycopg2":
            connection.cursor_factory = None
        elif driver == "sqlite3":
            connection.isolation_level = connection.row_factory = None  # SQLAlchemy begins, and not the driver
            connection.execute(f"PRAGMA busy_timeout = {self.timeout * 1_000:.0f}")
        elif driver == "MySQLdb":
            from MySQLdb.cursors import Cursor

            connection.cursorclass, seconds = Cursor, max(1, round(self.timeout))
            connection.set_character_set("utf8mb4")
            connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.query(
                "SET sql_mode = 'TRADITIONAL', time_zone = '+00:00', autocommit = 0, default_storage_engine = InnoDB,"
                f" lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"
            )
        else:
            connection = _Connection(connection)
        return connection

    def _on_begin(self, tx: sa.Connection) -> None:
        if self.name == "sqlite":  # two transactions that read first and write later can deadlock
            tx.exec_driver_sql("BEGIN" if tx.get_execution_options().get("reads_only") else "BEGIN IMMEDIATE")
        elif self.name == "postgresql":  # of the transaction alone: a pooler may give the session to others
            # In another zone, a time may be in no year. A client that is gone without a word keeps its locks for hours.
            waits = {"lock_timeout": self.timeout, "idle_in_transaction_session_timeout": 2 * self.timeout}
            limits = "".join(f"; SET LOCAL {name} = {seconds * 1_000:.0f}" for name, seconds in waits.items())
            tx.exec_driver_sql(f"SET LOCAL TIME ZONE 'UTC'{limits}")

    @contextmanager
    def _file_lock(self) -> Iterator[None]:
        """Keep others from the file of DuckDB, which reads it before it locks it, and would overwrite their commits."""
        if (path := self._find_file()) is None:
            text = "set its host to the path of one. A database in memory is lost when the process ends"
            raise UnsupportedDatabase(f"The connection does not lead to a DuckDB file: {text}")
        # This file keeps threads and tasks apart; the lock of DuckDB's, which a process has only once, other programs.
        with Path(f"{path}.lock").open("w") as file:
            self._wait(partial(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB))
            with path.open("r+b") if path.exists() else nullcontext(file) as locked:
                self._wait(partial(fcntl.lockf, locked, fcntl.LOCK_EX | fcntl.LOCK_NB))
                yield

    def _wait(self, attempt: Callable[[], T]) -> T:
        try:
            return _retrying(_is_busy, wait_fixed(0.005), self.timeout)(attempt)
        except Exception as error:
            if not _is_busy(error):
                raise
            text = f"the DuckDB file was in use for {self.timeout:.0f} s, by a program that should close it: {error}"
            raise WarehouseBusy(text) from error


def _retrying(is_passing: Callable[[BaseException], bool], wait: wait_base, seconds: float) -> Retrying:
    retry, stop = retry_if_exception(is_passing), stop_after_delay(seconds)
    return Retrying(retry=retry, wait=wait, stop=stop, reraise=True)


def _as_text(json: str | bytes) -> str:
    return json if isinstance(json, str) else json.decode()


def _check_columns(tx: sa.Connection, table: sa.Table) -> None:
    try:
        tx.execute(sa.select(table).where(sa.false()))
    except (ProgrammingError, OperationalError) as error:
        raise UnusableDatabase(
            f"The existing table {table.name} is not as this package creates it ({words_of(error)}). Rename it, or "
            "set another table prefix"
        ) from error


def is_refusal(error: Exception) -> bool:
    """Return whether the values of a row may have caused an error."""
    code = code_of(error)
    of_class = code[:2] if isinstance(code, str) else code
    return isinstance(error, DataError | IntegrityError | ValueError) or of_class in _OF_VALUES


def _is_one_of(error: DBAPIError, kinds: Sequence[str | int]) -> bool:
    return code_of(error) in kinds or any(f"{kind}" in f"{error.orig}" for kind in kinds if " " in f"{kind}")


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and _is_one_of(error, _CONFLICTS)


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, BlockingIOError) or any(text in str(error) for text in _BUSY)


class _Connection:
    """A connection that is its own cursor: DuckDB's cursors have transactions of their own."""

    def __init__(self, connection: Any) -> None:
        self._connection, self.rowcount, self.description = connection, -1, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> _Cursor:
        return _Cursor(self._connection)


class _Cursor(_Connection):
    def execute(self, statement: str, parameters: Any = ()) -> None:
        self._connection.execute(statement, parameters)
        self.description = self._connection.description
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):  # their only row is the number of rows
            (self.rowcount,), self.description = self._connection.fetchone(), None

    def close(self) -> None:  # the connection stays open
        pass


class _Compiler(PGCompiler):
    def for_update_clause(self, select: Any, **_: Any) -> str:  # noqa: ARG002  # a file has one transaction at a time
        return ""


class _Preparer(PGIdentifierPreparer):
    def _requires_quotes(self, value: str) -> bool:  # noqa: ARG002  # DuckDB reserves other words than PostgreSQL
        return True


class _Bytes(sa.LargeBinary):
    def bind_processor(self, dialect: sa.Dialect) -> None:
        """Return nothing: DuckDB's module has no Binary()."""


class DuckDb(PGDialect):
    """What the store needs of a dialect."""

    name = "duckdb"
    supports_statement_cache = True
    default_paramstyle = "qmark"
    preparer = _Preparer
    statement_compiler = _Compiler
    colspecs = {**PGDialect.colspecs, sa.LargeBinary: _Bytes}  # noqa: RUF012

    @classmethod
    def import_dbapi(cls) -> Any:
        import duckdb

        return duckdb

    def initialize(self, connection: sa.Connection) -> None:  # noqa: ARG002  # it would ask what only PostgreSQL has
        self.default_schema_name = "main"

    def do_begin(self, dbapi_connection: Any) -> None:
        dbapi_connection.begin()

    def do_rollback(self, dbapi_connection: Any) -> None:
        with suppress(self.loaded_dbapi.Error):  # after a commit there is no transaction
            dbapi_connection.rollback()

    def has_table(self, connection: sa.Connection, table_name: str, schema: str | None = None, **_: Any) -> bool:
        query = (
            "SELECT count(*) FROM information_schema.tables WHERE table_catalog = current_database()"
            " AND table_name = ? AND table_schema = coalesce(?, current_schema())"
        )
        return bool(connection.exec_driver_sql(query, (table_name, schema)).scalar())


registry.register("outbound_transfer_duckdb", __name__, "DuckDb")
