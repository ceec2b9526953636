"""A warehouse: its connection, its transactions and the names of its tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from outbound_transfer.warehouse.dialects import Hook, Row, dialect_of
from outbound_transfer.warehouse.errors import InvalidName
from outbound_transfer.warehouse.tables import TABLES, Table

DEFAULT_PREFIX: Final = "outbound_transfer_"

#: A word that is a column here is a reserved one somewhere.
_COLUMN: Final = re.compile(r"\[(\w+)\]")

_LONGEST_SUFFIX: Final = len("rejected_lines")


class Warehouse:
    """The tables of one prefix in one database.

    Every transaction has a connection of its own, closed at its end, but within :meth:`kept`.

    :param hook: leads to the database.
    :param prefix: begins the name of every table.
    :param schema: where the tables are; the connection's own where not given. It must exist.
    :param patience: seconds to wait for other sessions at most; as long as an ingestion may wait where not given.
    :raises InvalidName: the database could not keep the names as they are.
    """

    def __init__(
        self, hook: Hook, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None, patience: float | None = None
    ) -> None:
        dialect = dialect_of(hook)
        self.dialect = dialect if patience is None else dialect.hurried(dialect, patience)
        self.connect = self.dialect.connector(hook)
        self._prefix, self._schema = prefix, schema or None
        self._keeps, self._idle = False, None
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
        with self._connection() as connection:
            with closing(connection.cursor()) as cursor:
                yield cursor
            if self._keeps:
                connection.rollback()  # in some databases a question, too, begins a transaction

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A cursor in a transaction: committed at the end, or, where anything is raised, not at all."""
        with self._connection() as connection, closing(connection.cursor()) as cursor:
            for statement in self.dialect.begin:
                cursor.execute(statement)
            yield cursor
            # An exception never gets here, and closing the connection undoes what was not committed.
            self.dialect.commit(connection, cursor)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within, transactions that follow each other share a connection, where that keeps nobody out."""
        self._keeps = self.dialect.keeps
        try:
            yield
        finally:
            self._keeps = False
            self.rest()

    def rest(self) -> None:
        """Close the connection that is kept, before a wait; the next transaction opens another."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        connection, self._idle = self._idle or self._opened(), None
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._keeps:
            self.rest()  # one within another has left its own
            self._idle = connection
        else:
            connection.close()

    def _opened(self) -> Any:
        connection = self.connect()
        try:
            self.dialect.prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def name(self, table: Table) -> str:
        """The table's quoted name, for a statement with parameters (every statement here has some, or ``()``)."""
        return self.dialect.in_statement(self.qualified(table))

    def qualified(self, table: Table) -> str:
        """The table's quoted name as it is."""
        parts = (*((self._schema,) if self._schema else ()), self._prefix + table.suffix)
        return ".".join(self.dialect.quote(part) for part in parts)

    def has(self, cursor: Any, table: Table) -> bool:
        """Whether the table is there. Where it is not, ``cursor`` may be of no further use."""
        if self.dialect.exists is None:
            return _can(cursor, f"SELECT 1 FROM {self.name(table)} WHERE 1 = 0")  # noqa: S608
        names = {"quoted": self.qualified(table), "plain": self._prefix + table.suffix, "schema": self._schema}
        return bool(value(cursor, self.dialect.exists, names))

    def create(self, tables: Iterable[Table]) -> None:
        """Create those of the tables that are not there; two sessions may do so at once."""
        if self.dialect.exists is None:
            for table in tables:
                self._create_alone(table)
            return
        with self.writing() as cursor:
            self.lock(cursor)
            for table in tables:
                # Asked again under the lock; and a role that may not create tables can use those that it was given.
                if not self.has(cursor, table):
                    cursor.execute(self.dialect.definition(self.qualified(table), table), ())

    def _create_alone(self, table: Table) -> None:
        # What IF NOT EXISTS would do, where not every database has it and a failure ends a transaction.
        if self._is_there(table):
            return
        try:
            with self.writing() as cursor:
                cursor.execute(self.dialect.definition(self.qualified(table), table), ())
        except Exception:
            if not self._is_there(table):
                raise

    def _is_there(self, table: Table) -> bool:
        with self.reading() as cursor:
            return self.has(cursor, table)

    def index(self, cursor: Any, *tables: Table) -> None:
        """Create those of the tables' indexes that are not there, where the database gains by them."""
        if self.dialect.index is None:
            return
        quote, schema = self.dialect.quote, f"{self.dialect.quote(self._schema)}." if self._schema else ""
        for table in tables:
            name = self._prefix + table.suffix
            for number, index in enumerate(table.indexes, 1):
                columns, covers = (list(map(quote, names)) for names in (index.columns, index.covers))
                made = self.dialect.index(quote(f"{name}_{number}"), quote(name), schema, columns, covers)
                cursor.execute(self.dialect.in_statement(made), ())

    def lock(self, cursor: Any) -> None:
        """Be the only session that creates or changes tables, until the transaction ends."""
        for statement in self.dialect.lock:
            cursor.execute(statement)

    def insert(self, cursor: Any, table: Table, rows: Sequence[Row]) -> int:
        """Add the rows whose key is new, in bulk; how many those were."""
        return self.dialect.insert(cursor, self.qualified(table), table, rows) if rows else 0

    def append(self, cursor: Any, table: Table, rows: Sequence[Row]) -> int:
        """The same where all of them are likely to be new; the database must see to the key by itself.

        :raises KnownRow: one is not; the transaction is lost, and :meth:`insert` in another takes the rows.
        """
        add = self.dialect.append or self.dialect.insert
        return add(cursor, self.qualified(table), table, rows) if rows else 0

    def gains_by_append(self, table: Table) -> bool:
        """Whether :meth:`append` takes less, and nothing twice: a table that was not made here may not have its key."""
        if self.dialect.append is None:
            return False
        key = ", ".join(map(self.dialect.quote, table.key))
        nothing = f"INSERT INTO {self.name(table)} SELECT * FROM {self.name(table)} WHERE 1 = 0"  # noqa: S608
        with self.reading() as cursor:
            try:
                cursor.execute(f"{nothing} ON CONFLICT ({key}) DO NOTHING", ())
            except Exception:
                return False
            return True

    def run(self, cursor: Any, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a statement as :meth:`spelled` takes it; the cursor."""
        cursor.execute(self.spelled(statement), parameters)
        return cursor

    def spelled(self, statement: str) -> str:
        """A statement as this database wants it; tables are ``{events}``, columns ``[feed]``, parameters ``?``."""
        names = {table.suffix: self.name(table) for table in TABLES}
        quoted = _COLUMN.sub(lambda match: self.dialect.quote(match[1]), statement)
        return quoted.replace("?", self.dialect.mark).format_map(names)


def _can(cursor: Any, statement: str) -> bool:
    # Each driver has its own error for a table that is not there.
    try:
        cursor.execute(statement, ())
        cursor.fetchall()
    except Exception:
        return False
    return True


def value(cursor: Any, statement: str, parameters: Mapping[str, Any] | Sequence[Any]) -> Any:
    """The first column of the first row, or None where there is no row."""
    cursor.execute(statement, parameters)
    rows = cursor.fetchall()  # all of them: some drivers take no other statement while there are more
    return _row(rows[0])[0] if rows else None


def rows_of(cursor: Any) -> list[tuple[Any, ...]]:
    """All rows of what was asked."""
    return [_row(row) for row in cursor.fetchall()]


def _row(row: Any) -> tuple[Any, ...]:
    # The connection may ask for rows as dictionaries.
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)
