"""A warehouse: its connections, transactions and the names of its tables."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sqlalchemy import Table

from outbound_transfer.observability import metrics
from outbound_transfer.store.engine import HookLike
from outbound_transfer.store.schema import Tables
from outbound_transfer.store.tables import TABLES
from outbound_transfer.warehouse.dialects import Row, dialect_of
from outbound_transfer.warehouse.errors import DuplicateRow
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX
from outbound_transfer.warehouse.sockets import probe_server

#: A column in a statement. Some names of columns are reserved words in some databases, so all of them are quoted.
_COLUMN: Final = re.compile(r"\[(\w+)\]")

T = TypeVar("T")

#: Number of retries after a conflict over a row or over creating the tables: about two seconds in all, as the other
#: session may be slow on a busy machine.
_CONFLICT_RETRIES: Final = 40


class _RolledBack(Exception):
    """Rolls a trial back."""


class Warehouse:
    """The tables of one prefix in one database.

    Every transaction opens a connection and closes it at its end.

    :param hook: the database's hook.
    :param prefix: prefix of the names of the tables.
    :param schema: existing schema of the tables; default: the connection's own.
    :param timeout: maximum number of seconds to wait for other sessions; default: the dialect's.
    :raises InvalidName: the database cannot use the names unchanged.
    """

    def __init__(
        self,
        hook: HookLike,
        *,
        prefix: str = DEFAULT_PREFIX,
        schema: str | None = None,
        timeout: float | None = None,
    ) -> None:
        dialect = dialect_of(hook)
        self.dialect = dialect if timeout is None else dialect.with_timeout(timeout)
        self.connect = self.dialect.connection_factory(hook)
        self._hook = hook
        self.tables = Tables(hook, prefix=prefix, schema=schema, timeout=timeout)
        self.prefix, self.schema = self.tables.prefix, self.tables.schema

    @contextmanager
    def read(self) -> Iterator[Any]:
        """Open a DB-API cursor for queries."""
        with self._connection() as connection, closing(connection.cursor()) as tx:
            yield tx

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a DB-API cursor in a transaction, which is committed at the end, or rolled back on an exception."""
        with self._connection() as connection, closing(connection.cursor()) as tx:
            try:
                for statement in self.dialect.begin:
                    tx.execute(statement)
                yield tx
                # Not reached on an exception; the connection is rolled back then, and closed.
                self.dialect.commit(connection, tx)
            except Exception as error:
                with suppress(Exception):  # the error itself matters more
                    if file := self.dialect.find_file(connection, error):
                        error.args = (f"{error}: '{file}'",)
                raise

    @contextmanager
    def trial(self) -> Iterator[Any]:
        """Open a DB-API cursor in a transaction that is rolled back at its end."""
        with suppress(_RolledBack), self.transaction() as tx:
            yield tx
            raise _RolledBack

    def retry_on_conflict(self, change: Callable[[], T]) -> T:
        """Run a transaction again if another session creates the same row or the tables at the same time.

        :return: the result of ``change``.
        """
        left = _CONFLICT_RETRIES
        while True:
            try:
                return change()
            except Exception as error:
                if not left or not self.is_conflict(error):
                    raise
            left -= 1
            # Random, so that two retries do not stay in step.
            time.sleep(random.uniform(0.01, 0.1))  # noqa: S311

    def is_conflict(self, error: Exception) -> bool:
        """Return whether another session has created the same row or table, or changed the same row first."""
        # The name that every driver gives its error for a duplicate key (PEP 249); the classes differ.
        is_duplicate = any(base.__name__ == "IntegrityError" for base in type(error).__mro__)
        return is_duplicate or isinstance(error, DuplicateRow) or self.dialect.is_conflict(error)

    def epoch_time(self, tx: Any) -> float:
        """Return the database's time in seconds since the epoch; this machine's if the dialect has no query for it."""
        return float(scalar(tx, self.dialect.clock, ())) if self.dialect.clock else time.time()

    def now(self, tx: Any = None) -> datetime:
        """Return the database's time, which all sessions share; this machine's if the dialect has no query for it.

        :param tx: an open transaction; None to open one.
        """
        if tx is None and self.dialect.clock:
            with self.read() as tx:
                return self.now(tx)
        return datetime.fromtimestamp(self.epoch_time(tx), UTC)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        connection = self._open_connection()
        try:
            yield connection
        except BaseException:
            with suppress(Exception):  # a hook may keep its connection, and not close it here
                connection.rollback()
            raise
        finally:
            connection.close()

    def _open_connection(self) -> Any:
        try:
            connection = self.connect()
        except Exception:
            conn_id = getattr(self._hook, getattr(self._hook, "conn_name_attr", ""), "none")
            metrics.DATABASE_FAILURES.emit(sql_conn_id=conn_id)
            raise
        try:
            probe_server(connection)
            self.dialect.configure_connection(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def name(self, table: Table) -> str:
        """Return the table's quoted name for a statement with parameters; every statement here has some, or ``()``."""
        return self.dialect.in_statement(self.qualified(table))

    def qualified(self, table: Table) -> str:
        """Return the table's quoted name."""
        parts = (*((self.schema,) if self.schema else ()), self.prefix + table.name)
        return ".".join(self.dialect.quote(part) for part in parts)

    def insert(self, tx: Any, table: Table, rows: Sequence[Row]) -> int:
        """Insert the rows whose key is new, in bulk; return their number."""
        return self.dialect.insert(tx, self.qualified(table), table, rows) if rows else 0

    def run(self, tx: Any, statement: str, parameters: Sequence[Any] = (), **tables: Table) -> Any:
        """Execute a statement in the form that :meth:`render` takes; return ``tx``."""
        tx.execute(self.render(statement, **tables), parameters)
        return tx

    def render(self, statement: str, **tables: Table) -> str:
        """Return a statement in this database's SQL; the argument has ``{table}``, ``[column]`` and ``?``.

        :param tables: tables besides those of :data:`.tables.TABLES`, by their names in the statement.
        """
        all_tables = {**{table.name: table for table in TABLES}, **tables}
        names = {name: self.name(table) for name, table in all_tables.items()}
        quoted = _COLUMN.sub(lambda match: self.dialect.quote(match[1]), self.dialect.adapt(statement))
        return quoted.replace("?", self.dialect.placeholder).format_map(names)


def scalar(tx: Any, statement: str, parameters: Mapping[str, Any] | Sequence[Any]) -> Any:
    """Return the first column of the first row of a query; None if there is no row."""
    tx.execute(statement, parameters)
    rows = tx.fetchall()  # all rows: some drivers run no other statement before
    return _row(rows[0])[0] if rows else None


def fetch_all(tx: Any) -> list[tuple[Any, ...]]:
    """Return all rows of the last query, as tuples."""
    return [_row(row) for row in tx.fetchall()]


def fetch_some(tx: Any, count: int) -> list[tuple[Any, ...]]:
    """Return the first rows of the last query, as tuples."""
    return [_row(row) for row in tx.fetchmany(count)]


def _row(row: Any) -> tuple[Any, ...]:
    # Connections may be configured to return dictionaries.
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)
