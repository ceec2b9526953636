"""A warehouse: its connection, its transactions and the names of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, Protocol

from outbound_transfer.warehouse.dialects import Row, definition, dialect_of
from outbound_transfer.warehouse.errors import InvalidName
from outbound_transfer.warehouse.tables import Table

DEFAULT_PREFIX: Final = "outbound_transfer_"

_LONGEST_SUFFIX: Final = len("rejected_lines")


class Hook(Protocol):
    """What is used of an Airflow ``DbApiHook``."""

    @property
    def dialect_name(self) -> str: ...

    def get_conn(self) -> Any: ...


class Warehouse:
    """The tables of one prefix in one database. Every transaction has a connection of its own, closed at its end.

    :param hook: leads to the database.
    :param prefix: begins the name of every table.
    :param schema: where the tables are; the connection's own where not given. It must exist.
    :raises UnsupportedWarehouse: there is no SQL for that database.
    :raises InvalidName: the database could not keep the names as they are.
    """

    def __init__(self, hook: Hook, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
        self.dialect = dialect_of(hook.dialect_name)
        self._hook, self._prefix, self._schema = hook, prefix, schema or None
        self._check(prefix, room=_LONGEST_SUFFIX)
        self._check(schema or "", room=0)

    def _check(self, name: str, room: int) -> None:
        try:
            size = len(name.encode()) + room
        except UnicodeEncodeError:
            raise InvalidName(f"the name {name!r} is no text that UTF-8 can hold") from None
        if "\0" in name:
            raise InvalidName(f"the name {name!r} holds a NUL character")
        if size > self.dialect.longest_name:
            # It would be cut without a word, and two tables could become one.
            raise InvalidName(f"the name {name!r} is too long: at most {self.dialect.longest_name - room} bytes")

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A cursor that only reads."""
        with closing(self._hook.get_conn()) as connection:
            self.dialect.prepare(connection)
            with closing(connection.cursor()) as cursor:
                yield cursor

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A cursor in a transaction: committed at the end, or, where anything is raised, not at all."""
        with closing(self._hook.get_conn()) as connection:
            self.dialect.prepare(connection)
            with closing(connection.cursor()) as cursor:
                for statement in self.dialect.begin:
                    cursor.execute(statement)
                yield cursor
                # An exception never gets here, and closing the connection undoes what was not committed.
                connection.commit()

    def name(self, table: Table) -> str:
        """The table's quoted name, for a statement with parameters (every statement here has some, or ``()``)."""
        quoted = self._qualified(table)
        return quoted.replace("%", "%%") if self.dialect.mark == "%s" else quoted

    def _qualified(self, table: Table) -> str:
        parts = (*((self._schema,) if self._schema else ()), self._prefix + table.suffix)
        return ".".join(self.dialect.quote(part) for part in parts)

    def has(self, cursor: Any, tables: Iterable[Table]) -> bool:
        """Whether all the tables are there."""
        return all(self._has(cursor, table) for table in tables)

    def _has(self, cursor: Any, table: Table) -> bool:
        names = {"quoted": self._qualified(table), "plain": self._prefix + table.suffix, "schema": self._schema}
        return bool(value(cursor, self.dialect.exists, names))

    def create(self, cursor: Any, tables: Iterable[Table]) -> None:
        """Create those of the tables that are not there; two sessions may do so at once."""
        for statement in self.dialect.lock:
            cursor.execute(statement)
        for table in tables:
            # Asked again under the lock; and a role that may not create tables can use those that it was given.
            if not self._has(cursor, table):
                cursor.execute(definition(self.dialect, self.name(table), table), ())

    def insert(self, cursor: Any, table: Table, rows: Sequence[Row]) -> int:
        """Add the rows whose key is new, in bulk; how many those were."""
        return self.dialect.insert(cursor, self.name(table), table, rows) if rows else 0


def value(cursor: Any, statement: str, parameters: Mapping[str, Any] | Sequence[Any]) -> Any:
    """The first column of the first row, or None where there is no row."""
    cursor.execute(statement, parameters)
    row = cursor.fetchone()
    # The connection may ask for rows as dictionaries.
    return next(iter(row.values())) if isinstance(row, Mapping) else row and row[0]
