"""The base class of dialects: what differs between databases, with defaults that most of them share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from sqlalchemy import Table
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultDialect

from outbound_transfer.store.engine import HookLike

Row = Sequence[Any]

#: Opens a connection.
Connect: TypeAlias = Callable[[], Any]

DialectT = TypeVar("DialectT", bound="WarehouseDialect")

#: Times a timeout, after which client and server give up one another if they hear nothing within a transaction.
SILENCE_FACTOR: Final = 2

#: Drivers' names for errors that values may cause (PEP 249). Their classes are not imported: any driver may be missing.
_VALUE_ERRORS: Final = frozenset(("DataError", "IntegrityError"))


class WarehouseDialect(ABC):
    """One kind of database.

    :cvar name: the database's name in SQLAlchemy and in ``DbApiHook.dialect_name``.
    :cvar placeholder: a parameter in a statement.
    :cvar begin: statements that open a transaction that writes.
    :cvar row_lock: end of a query that locks the rows it returns, in databases whose transactions see what others
        commit meanwhile.
    :cvar clock: query for the database's time in seconds since the epoch; None if there is no such query here.
    :ivar timeout: seconds to wait for locks of other sessions; None for the dialect's default.
    """

    name: str
    placeholder: str = "?"
    begin: tuple[str, ...] = ()
    row_lock: ClassVar[str] = ""
    clock: str | None = None
    timeout: float | None = None

    def with_timeout(self: DialectT, seconds: float) -> DialectT:
        """Return a copy that waits at most this long for locks held by other sessions."""
        changed = copy.copy(self)
        changed.timeout = seconds
        return changed

    def connection_factory(self, hook: HookLike) -> Connect:
        """Return a function that opens a connection to the hook's database."""
        return hook.get_conn

    def configure_connection(self, connection: Any) -> None:  # noqa: B027  # most connections are ready
        """Prepare a new connection, so that only an explicit commit commits."""

    def commit(self, connection: Any, tx: Any) -> None:  # noqa: ARG002  # most drivers commit a connection
        """Commit the transaction."""
        connection.commit()

    def rowcount(self, tx: Any) -> int:
        """Return the number of rows that the last statement changed."""
        return int(tx.rowcount)

    @abstractmethod
    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        """Insert the rows whose key is new into the table of the quoted name; return their number."""

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


class _DuckDbSql(PGDialect):
    """DuckDB reads PostgreSQL's SQL, and its own dialect is a package that is not required."""

    name = "duckdb"


_Paramstyle: TypeAlias = Literal["qmark", "format", "named"]

#: Not the dialects of drivers: psycopg's casts text to VARCHAR, which PostgreSQL does not compare with timestamps.
_SQL_DIALECTS: Final[Mapping[str, type[DefaultDialect]]] = {
    "postgresql": PGDialect,
    "duckdb": _DuckDbSql,
    "mysql": MySQLDialect,
    "sqlite": SQLiteDialect,
}

_PARAMSTYLES: Final[Mapping[str, _Paramstyle]] = {"?": "qmark", "%s": "format"}


@cache
def sqlalchemy_dialect(name: str, paramstyle: _Paramstyle) -> Dialect:
    """Return SQLAlchemy's dialect of that name."""
    return _SQL_DIALECTS[name](paramstyle=paramstyle)
