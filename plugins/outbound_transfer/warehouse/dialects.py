"""How each database spells the tables: all that differs between them is on this page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from outbound_transfer.warehouse.errors import UnsupportedWarehouse
from outbound_transfer.warehouse.tables import Kind, Table

Row = Sequence[Any]


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
    :ivar insert: ``(cursor, quoted table, table, rows)``: adds the rows whose key is new; how many those were.
    """

    name: str
    mark: str
    types: Mapping[Kind, str]
    longest_name: int
    prepare: Callable[[Any], None]
    begin: tuple[str, ...]
    lock: tuple[str, ...]
    exists: str
    insert: Callable[[Any, str, Table, Sequence[Row]], int]

    def quote(self, name: str) -> str:
        """``name`` as an identifier."""
        return _preparer(self.name).quote_identifier(name)  # type: ignore[no-any-return]


def _preparer(name: str) -> Any:
    from sqlalchemy.dialects import registry

    # A style without % signs keeps SQLAlchemy from doubling them: that is done where parameters are filled in.
    return registry.load(name)(paramstyle="named").identifier_preparer


def definition(dialect: Dialect, name: str, table: Table) -> str:
    """The statement that creates ``table`` under the quoted ``name``."""
    columns = [f"{c.name} {dialect.types[c.kind]}{' NOT NULL' if c.required else ''}" for c in table.columns]
    return f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}, PRIMARY KEY ({', '.join(table.key)}))"


def _names(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


# ---------------------------------------------------------------------------------------------------- PostgreSQL

_POSTGRES_TYPES: Final = {
    Kind.TEXT: "text",
    Kind.WHOLE: "bigint",
    Kind.TIME: "timestamptz",
    # Not jsonb: that refuses \u0000 and unpaired surrogates, and forgets order, spelling and repeated names.
    Kind.JSON: "json",
    Kind.BYTES: "bytea",
}

#: What arrays of rows travel as; the server makes instants and JSON of the text.
_POSTGRES_WIRE: Final = _POSTGRES_TYPES | {Kind.TIME: "text", Kind.JSON: "text"}


def _prepare_postgres(connection: Any) -> None:
    connection.autocommit = False  # psycopg 2 and 3 alike, whatever the connection's extra says


def _insert_postgres(cursor: Any, name: str, table: Table, rows: Sequence[Row]) -> int:
    # One statement and one round trip a page: the rows go as one array a column.
    arrays = ", ".join(f"%s::{_POSTGRES_WIRE[column.kind]}[]" for column in table.columns)
    casts = ", ".join(f"new.{column.name}::{_POSTGRES_TYPES[column.kind]}" for column in table.columns)
    cursor.execute(
        f"INSERT INTO {name} ({_names(table)}) SELECT {casts} FROM unnest({arrays}) AS new ({_names(table)})"  # noqa: S608
        f" ON CONFLICT ({', '.join(table.key)}) DO NOTHING",
        [list(values) for values in zip(*rows, strict=True)],
    )
    return int(cursor.rowcount)


POSTGRESQL: Final = Dialect(
    name="postgresql",
    mark="%s",
    types=_POSTGRES_TYPES,
    longest_name=63,
    prepare=_prepare_postgres,
    # A stricter default of the database would turn a lost race for the cursor into an error.
    begin=("SET TRANSACTION ISOLATION LEVEL READ COMMITTED",),
    # IF NOT EXISTS alone is not enough: two that create one table at once collide in the catalog.
    lock=("SELECT pg_advisory_xact_lock(8029759185026510692)",),
    exists="SELECT to_regclass(%(quoted)s) IS NOT NULL",
    insert=_insert_postgres,
)

# -------------------------------------------------------------------------------------------------------- SQLite

#: Milliseconds to wait for another writer; a page takes a few.
_SQLITE_PATIENCE: Final = 30_000


def _prepare_sqlite(connection: Any) -> None:
    connection.isolation_level = None  # transactions begin and end where it is said, not where the driver thinks
    connection.execute(f"PRAGMA busy_timeout = {_SQLITE_PATIENCE}")
    # WAL: readers never block the ingest, nor it them. It is a property of the file, so it is set once.
    until = time.monotonic() + _SQLITE_PATIENCE / 1_000
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except connection.OperationalError:  # another is switching it, which does not wait for the busy timeout
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _insert_sqlite(cursor: Any, name: str, table: Table, rows: Sequence[Row]) -> int:
    marks = ", ".join("?" for _ in table.columns)
    cursor.executemany(
        f"INSERT INTO {name} ({_names(table)}) VALUES ({marks}) ON CONFLICT ({', '.join(table.key)}) DO NOTHING",  # noqa: S608
        rows,
    )
    return int(cursor.rowcount)


SQLITE: Final = Dialect(
    name="sqlite",
    mark="?",
    types={Kind.TEXT: "TEXT", Kind.WHOLE: "INTEGER", Kind.TIME: "TEXT", Kind.JSON: "TEXT", Kind.BYTES: "BLOB"},
    longest_name=1_000,
    prepare=_prepare_sqlite,
    # A transaction that reads first and writes later can deadlock with another of its kind.
    begin=("BEGIN IMMEDIATE",),
    lock=(),
    exists="SELECT count(*) > 0 FROM pragma_table_info(:plain, :schema)",
    insert=_insert_sqlite,
)

DIALECTS: Final = {dialect.name: dialect for dialect in (POSTGRESQL, SQLITE)}


def dialect_of(name: str) -> Dialect:
    """The dialect of a hook's ``dialect_name``.

    :raises UnsupportedWarehouse: naming the databases that are supported.
    """
    try:
        return DIALECTS[name]
    except KeyError:
        supported = ", ".join(sorted(DIALECTS))
        raise UnsupportedWarehouse(f"the warehouse is {name!r}; supported are: {supported}") from None
