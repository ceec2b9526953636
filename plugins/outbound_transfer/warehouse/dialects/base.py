"""What differs between databases, as one description each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, TypeAlias

from outbound_transfer.warehouse.tables import Column, Kind, Table

Row = Sequence[Any]

#: Makes a connection, however long that takes.
Connect: TypeAlias = Callable[[], Any]

#: Keys that one statement asks for at most: databases end at about 1,000 parameters.
_KEYS_AT_ONCE: Final = 500


class Hook(Protocol):
    """What is used of an Airflow ``DbApiHook``."""

    @property
    def dialect_name(self) -> str: ...

    @property
    def placeholder(self) -> str: ...

    @property
    def supports_autocommit(self) -> bool: ...

    def get_conn(self) -> Any: ...

    def set_autocommit(self, conn: Any, autocommit: bool) -> None: ...


def _connector(hook: Hook) -> Connect:
    return hook.get_conn


def _as_it_is(connection: Any) -> None:
    """A connection that is ready."""


def _commit(connection: Any, cursor: Any) -> None:  # noqa: ARG001  # most drivers commit a connection
    connection.commit()


def _rowcount(cursor: Any) -> int:
    return int(cursor.rowcount)


def _never(error: BaseException) -> bool:  # noqa: ARG001
    return False


#: What drivers call the errors that values may cause (PEP 249); their classes are not imported, as any may be missing.
_OF_VALUES: Final = frozenset(("DataError", "IntegrityError"))


def is_of_values(error: BaseException) -> bool:
    """Whether an error may be due to the values of a statement, going by its class."""
    names = {each.__name__ for each in type(error).__mro__}
    return isinstance(error, (ValueError, TypeError, OverflowError)) or bool(names & _OF_VALUES)


def _unhurried(dialect: Dialect, seconds: float) -> Dialect:  # noqa: ARG001
    return dialect


@dataclass(frozen=True)
class Dialect:
    """One database.

    :ivar name: as SQLAlchemy and ``DbApiHook.dialect_name`` call it.
    :ivar mark: a parameter in a statement.
    :ivar types: column types by kind.
    :ivar longest_name: bytes of a table's name; a longer one would be cut, and two tables become one.
    :ivar prepare: makes a fresh connection ready: nothing is committed but by an explicit commit.
    :ivar begin: statements that open a transaction that writes.
    :ivar lock: statements that let one session at a time create tables.
    :ivar exists: asks whether a table is there; named parameters ``quoted`` (with its schema), ``plain``, ``schema``.
        None where no statement is portable: the table is then asked for a row.
    :ivar insert: ``(cursor, quoted table, table, rows)``: adds the rows whose key is new; how many those were.
    :ivar append: the same for rows that are all new, where that takes much less: :class:`.KnownRow` where one is not.
    :ivar text_of: the type of text of a length at most, where the database cannot index text of any length.
    :ivar index: ``(index's name, table's name, schema, columns, covered columns)``, all quoted, schema with its dot or
        empty: the statement that creates an index unless it is there. None where none is worth its while.
    :ivar connector: what makes connections, of a hook.
    :ivar commit: ``(connection, cursor)``: ends the transaction.
    :ivar changed: how many rows the last statement changed.
    :ivar is_race: whether an error means that another session changed the same row first.
    :ivar is_refusal: whether an error may be due to what rows hold; whether it is so, and of which, is then tried out.
    :ivar keeps: an open connection keeps nobody else out.
    :ivar takes_lists: a list can be one parameter, as ``= ANY(?)`` has it.
    :ivar hurried: ``(dialect, seconds)``: the same, which waits for other sessions no longer than that.
    """

    name: str
    mark: str
    types: Mapping[Kind, str]
    longest_name: int
    exists: str | None
    insert: Callable[[Any, str, Table, Sequence[Row]], int]
    append: Callable[[Any, str, Table, Sequence[Row]], int] | None = None
    begin: tuple[str, ...] = ()
    lock: tuple[str, ...] = ()
    text_of: Callable[[int], str] | None = None
    index: Callable[[str, str, str, list[str], list[str]], str] | None = None
    connector: Callable[[Hook], Connect] = _connector
    prepare: Callable[[Any], None] = _as_it_is
    commit: Callable[[Any, Any], None] = _commit
    changed: Callable[[Any], int] = _rowcount
    is_race: Callable[[BaseException], bool] = _never
    is_refusal: Callable[[BaseException], bool] = is_of_values
    keeps: bool = True
    takes_lists: bool = False
    hurried: Callable[[Dialect, float], Dialect] = _unhurried

    def quote(self, name: str) -> str:
        """``name`` as an identifier."""
        return preparer(self.name).quote_identifier(name)  # type: ignore[no-any-return]

    def in_statement(self, quoted: str) -> str:
        """A quoted name, for a statement with parameters (every statement here has some, or ``()``)."""
        return quoted.replace("%", "%%") if self.mark == "%s" else quoted

    def columns(self, table: Table) -> str:
        """The columns' names, for a statement."""
        return ", ".join(self.quote(column.name) for column in table.columns)

    def definition(self, quoted: str, table: Table) -> str:
        """The statement that creates ``table`` under the quoted name."""
        columns = ", ".join(map(self.column, table.columns))
        key = ", ".join(self.quote(name) for name in table.key)
        return f"CREATE TABLE {self.in_statement(quoted)} ({columns}, PRIMARY KEY ({key}))"

    def column(self, column: Column) -> str:
        """A column's definition."""
        kind = self.text_of(column.length) if self.text_of and column.length else self.types[column.kind]
        return f"{self.quote(column.name)} {kind}{' NOT NULL' if column.required else ''}"


@cache
def preparer(name: str) -> Any:
    """SQLAlchemy's writer of identifiers; standard SQL's where SQLAlchemy does not know the database."""
    # A style without % signs keeps SQLAlchemy from doubling them: that is done where parameters are filled in.
    return sqlalchemy_dialect(name, paramstyle="named").identifier_preparer


def sqlalchemy_dialect(name: str, **options: Any) -> Any:
    """SQLAlchemy's dialect of that name, or its default one."""
    from sqlalchemy import URL
    from sqlalchemy.engine.default import DefaultDialect
    from sqlalchemy.exc import NoSuchModuleError

    try:
        # Not the registry itself: what it holds is a class for most names, and for "mariadb" an instance.
        return URL.create(name).get_dialect()(**options)
    except NoSuchModuleError:
        return DefaultDialect(**options)


def missing(cursor: Any, dialect: Dialect, quoted: str, table: Table, rows: Sequence[Row]) -> list[Row]:
    """Those of the rows whose key is not in the table, each key once.

    Of two keys of a row, the last is looked for by value; the others are the same in all rows (a feed).
    """
    key = [[column.name for column in table.columns].index(name) for name in table.key]
    new = {tuple(row[at] for at in key): row for row in reversed(rows)}
    known: set[tuple[Any, ...]] = set()
    names = [dialect.quote(name) for name in table.key]
    same = "".join(f"{name} = {dialect.mark} AND " for name in names[:-1])
    for part in _parts(list(new)):
        last = [each[-1] for each in part]
        among = f"= ANY({dialect.mark})" if dialect.takes_lists else f"IN ({', '.join(dialect.mark for _ in part)})"
        cursor.execute(
            f"SELECT {', '.join(names)} FROM {dialect.in_statement(quoted)} WHERE {same}{names[-1]} {among}",  # noqa: S608
            (*part[0][:-1], *([last] if dialect.takes_lists else last)),
        )
        known.update(tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in cursor.fetchall())
    return [row for each, row in reversed(new.items()) if each not in known]


def _parts(keys: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """At most some hundred keys each, that differ in their last part only."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in keys:
        groups.setdefault(key[:-1], []).append(key)
    return [group[at : at + _KEYS_AT_ONCE] for group in groups.values() for at in range(0, len(group), _KEYS_AT_ONCE)]
