"""The base class of dialects: what differs between databases, with defaults that most of them share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar

from sqlalchemy import Index, Table
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import URL, Dialect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.schema import CreateIndex, CreateTable, SetColumnComment, SetTableComment

Row = Sequence[Any]

#: Opens a connection.
Connect: TypeAlias = Callable[[], Any]

DialectT = TypeVar("DialectT", bound="WarehouseDialect")

#: Times a timeout, after which client and server give up one another if they hear nothing within a transaction.
SILENCE_FACTOR: Final = 2

#: Maximum number of keys per query: some databases accept about 1,000 parameters per statement.
_MAX_KEYS_PER_QUERY: Final = 500

#: Drivers' names for errors that values may cause (PEP 249). Their classes are not imported: any driver may be missing.
_VALUE_ERRORS: Final = frozenset(("DataError", "IntegrityError"))


class DbApiHookLike(Protocol):
    """The part of Airflow's ``DbApiHook`` that is used here."""

    @property
    def dialect_name(self) -> str: ...

    @property
    def placeholder(self) -> str: ...

    @property
    def supports_autocommit(self) -> bool: ...

    def get_conn(self) -> Any: ...

    def set_autocommit(self, conn: Any, autocommit: bool) -> None: ...


class WarehouseDialect:
    """One kind of database.

    :cvar name: the database's name in SQLAlchemy and in ``DbApiHook.dialect_name``.
    :cvar placeholder: a parameter in a statement.
    :cvar max_identifier_length: bytes of a table's name; the database would shorten a longer one silently.
    :cvar begin: statements that open a transaction that writes.
    :cvar lock: statements after which no other session can create tables, until the transaction ends; in the form of
        :meth:`.Warehouse.render`.
    :cvar row_lock: end of a query that locks the rows it returns, in databases whose transactions see what others
        commit meanwhile.
    :cvar exists: query whether a table exists, with the named parameters ``plain`` (its name) and ``schema``. None if
        there is no such query: then a row of the table is selected.
    :cvar uses_indexes: whether the database benefits from indexes besides the primary key.
    :cvar sets_comments: whether comments are set after a table is created. Some databases have none, or have them
        in the definition of the table.
    :cvar needs_probe: whether it is unknown if the database keeps what it is given (:mod:`.warehouse.probe`).
    :cvar clock: query for the database's time in seconds since the epoch; None if there is no such query here.
    :ivar timeout: seconds to wait for locks of other sessions; None for the dialect's default.
    :ivar only_reads: whether a connection must leave the database as it is.
    """

    name: str
    placeholder: str = "?"
    max_identifier_length: ClassVar[int]
    begin: tuple[str, ...] = ()
    lock: ClassVar[tuple[str, ...]] = ()
    row_lock: ClassVar[str] = ""
    exists: ClassVar[str | None] = None
    uses_indexes: ClassVar[bool] = False
    sets_comments: ClassVar[bool] = False
    needs_probe: ClassVar[bool] = False
    clock: str | None = None
    timeout: float | None = None
    only_reads: bool = False

    def with_timeout(self: DialectT, seconds: float) -> DialectT:
        """Return a copy that waits at most this long for locks held by other sessions."""
        changed = copy.copy(self)
        changed.timeout = seconds
        return changed

    def for_inspection(self: DialectT) -> DialectT:
        """Return a copy whose connections leave the database as it is."""
        changed = copy.copy(self)
        changed.only_reads = True
        return changed

    def file_of(self, hook: DbApiHookLike) -> Path | None:  # noqa: ARG002  # most databases are servers
        """Return the file that a connection creates if it does not exist; None if there is none such."""
        return None

    def connection_factory(self, hook: DbApiHookLike) -> Connect:
        """Return a function that opens a connection to the hook's database."""
        return hook.get_conn

    def configure_connection(self, connection: Any) -> None:  # most connections are ready
        """Prepare a new connection, so that only an explicit commit commits."""

    def commit(self, connection: Any, tx: Any) -> None:  # noqa: ARG002  # most drivers commit a connection
        """Commit the transaction."""
        connection.commit()

    def rowcount(self, tx: Any) -> int:
        """Return the number of rows that the last statement changed."""
        return int(tx.rowcount)

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        """Insert the rows whose key is new into the table of the quoted name; return their number."""
        new = self.parameters(table, select_new_rows(tx, self, quoted, table, rows))
        if new:
            marks = ", ".join(self.placeholder for _ in table.columns)
            tx.executemany(f"INSERT INTO {self.in_statement(quoted)} ({self.columns(table)}) VALUES ({marks})", new)  # noqa: S608
        return len(new)

    def parameters(self, table: Table, rows: Sequence[Row]) -> list[Row]:  # noqa: ARG002  # most take them as they are
        """Return rows as parameters of the portable :meth:`insert`.

        :raises ValueError: the database cannot take a row.
        """
        return [tuple(row) for row in rows]

    def find_file(self, connection: Any, error: Exception) -> str:  # noqa: ARG002
        """Return which file an error is about, if the driver does not say it; "" otherwise."""
        return ""

    def is_conflict(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether an error means that another session changed the same row first."""
        return False

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether the values of rows may have caused an error."""
        names = {each.__name__ for each in type(error).__mro__}
        return isinstance(error, (ValueError, TypeError, OverflowError)) or bool(names & _VALUE_ERRORS)

    def sql(self) -> Dialect:
        """Return SQLAlchemy's dialect, which writes the statements that create tables."""
        return sqlalchemy_dialect(self.name, _PARAMSTYLES[self.placeholder])

    def quote(self, name: str) -> str:
        """Return ``name`` as an identifier."""
        # A style without % signs keeps SQLAlchemy from doubling them: that is done where parameters are filled in.
        return sqlalchemy_dialect(self.name, "named").identifier_preparer.quote_identifier(name)

    def adapt(self, statement: str) -> str:
        """Return a statement in the form that :meth:`.database.Warehouse.render` takes, with this database's casts."""
        return statement

    def in_statement(self, quoted: str) -> str:
        """Return a quoted name for a statement with parameters; every statement here has some, or ``()``."""
        return quoted.replace("%", "%%") if self.placeholder == "%s" else quoted

    def columns(self, table: Table) -> str:
        """Return the names of the columns, for a statement."""
        return ", ".join(self.quote(column.name) for column in table.columns)

    def key(self, table: Table) -> str:
        """Return the names of the key's columns, for a statement."""
        return ", ".join(self.quote(column.name) for column in table.primary_key)

    def create_statements(self, table: Table) -> list[str]:
        """Return the statements that create a table, its indexes and its comments.

        :param table: with the prefix and the schema of the warehouse.
        """
        elements: list[Any] = [CreateTable(table)]
        elements += [CreateIndex(index) for index in self.indexes(table)]
        if self.sets_comments:
            elements += [SetTableComment(table), *map(SetColumnComment, table.columns)]
        return [str(each.compile(dialect=self.sql())).strip() for each in elements]

    def indexes(self, table: Table) -> Iterable[Index]:
        """Return the indexes to create, in a fixed order."""
        return sorted(table.indexes, key=lambda index: str(index.name)) if self.uses_indexes else ()


class _DuckDbSql(PGDialect):
    """DuckDB reads PostgreSQL's SQL, and its own dialect is a package that is not required."""

    name = "duckdb"


_Paramstyle: TypeAlias = Literal["qmark", "format", "named"]

#: Not the dialects of drivers: psycopg's casts text to VARCHAR, which PostgreSQL does not compare with timestamps.
_SQL_DIALECTS: Final = {
    "postgresql": PGDialect,
    "duckdb": _DuckDbSql,
    "mysql": MySQLDialect,
    "mariadb": MySQLDialect,
}

_PARAMSTYLES: Final[Mapping[str, _Paramstyle]] = {"?": "qmark", "%s": "format"}


@cache
def sqlalchemy_dialect(name: str, paramstyle: _Paramstyle) -> Dialect:
    """Return SQLAlchemy's dialect of that name; that of standard SQL if SQLAlchemy does not know the database."""
    if name in _SQL_DIALECTS:
        return _SQL_DIALECTS[name](paramstyle=paramstyle)
    try:
        return URL.create(name).get_dialect()(paramstyle=paramstyle)  # type: ignore[call-arg]
    except NoSuchModuleError:
        return DefaultDialect(paramstyle=paramstyle)


def select_new_rows(tx: Any, dialect: WarehouseDialect, quoted: str, table: Table, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose key is not in the table, each key once.

    Of two keys of a row, the last is looked for by value; the others are the same in all rows (an account).
    """
    key = [list(table.columns).index(column) for column in table.primary_key]
    new = {tuple(row[at] for at in key): row for row in reversed(rows)}
    known: set[tuple[Any, ...]] = set()
    names = [dialect.quote(column.name) for column in table.primary_key]
    same = "".join(f"{name} = {dialect.placeholder} AND " for name in names[:-1])
    for part in _chunk_keys(list(new)):
        marks = ", ".join(dialect.placeholder for _ in part)
        tx.execute(
            f"SELECT {', '.join(names)} FROM {dialect.in_statement(quoted)} WHERE {same}{names[-1]} IN ({marks})",  # noqa: S608
            (*part[0][:-1], *(each[-1] for each in part)),
        )
        known.update(tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in tx.fetchall())
    return [row for each, row in reversed(new.items()) if each not in known]


def _chunk_keys(keys: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Return groups of a few hundred keys at most that differ in their last part only."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in keys:
        groups.setdefault(key[:-1], []).append(key)
    size = _MAX_KEYS_PER_QUERY
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]
