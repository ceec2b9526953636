"""MySQL and MariaDB, over mysqlclient.

A session takes nothing from the server's defaults: not the character set (latin1 in MariaDB), the collation (blind to
case and accents), the SQL mode (a lax one changes values silently), the isolation, nor the engine of tables.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Index, Table
from sqlalchemy.dialects.mysql.base import MySQLDDLCompiler, MySQLDialect
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateTable

from outbound_transfer.warehouse.dialects.base import (
    SILENCE_FACTOR,
    Connect,
    DbApiHookLike,
    Row,
    RowTooLarge,
    WarehouseDialect,
    select_new_rows,
)
from outbound_transfer.warehouse.dialects.refused import check_driver
from outbound_transfer.warehouse.errors import DuplicateRow, UnsupportedWarehouse, WarehouseBusy
from outbound_transfer.warehouse.tables import TIME_COLUMNS

#: Bytes of a statement with several rows; larger ones are not faster.
_MAX_STATEMENT: Final = 4 * 1024 * 1024

#: Bytes of a packet that are not the statement.
_PACKET_OVERHEAD: Final = 1_024

#: Maximum number of bytes that a character of a text, or a byte, becomes in a literal.
_BYTES_PER_CHARACTER: Final = 4

#: Seconds that a statement may take in MariaDB; milliseconds that a query may take in MySQL.
_MARIADB_TIMEOUT: Final = "max_statement_time = {seconds:.3f}"
_MYSQL_TIMEOUT: Final = "max_execution_time = {milliseconds:.0f}"

#: What a server's defaults may have changed: rows that a query leaves out, what a commit does, what is refused, and
#: when a duplicate key is found.
_SETTINGS: Final = (
    "sql_select_limit = DEFAULT",
    "completion_type = 0",
    "sql_big_selects = 1",
    "sql_safe_updates = 0",
    "unique_checks = 1",
    "foreign_key_checks = 1",
)

_DUPLICATE: Final = 1062
_DEADLOCK: Final = 1213

#: Errors over what another session has changed: a deadlock, a changed record or table; a table, column or index that is
#: there or gone by now, as no lock outlives a statement of DDL. Not a lock wait timeout (1205), which says nothing of a
#: change.
_CONFLICTS: Final = frozenset((_DEADLOCK, 1020, 1412, 1050, 1060, 1061, 1091))

#: Errors that values may cause. Drivers have one class for these and for lost connections, and not all have SQLSTATE.
_REFUSALS: Final = frozenset(
    (
        *(1048, _DUPLICATE, 1118, 1153, 1264, 1265, 1292, 1300, 1301, 1366, 1367, 1406, 1411, 1644, 1690, 1364),
        *(3140, 3141, 3156, 3819, 4025),  # JSON, and CHECK constraints of MySQL and of MariaDB
        *(1216, 1217, 1451, 1452),  # foreign keys
        *(1526, 1748),  # partitions
    )
)

#: JSON is text here, and the server makes NULL of a cast that is larger than a packet.
_TEXT_CAST: Final = re.compile(r"CAST\((\S+) AS TEXT\)")

#: A timestamp that a statement compares with a column, or assigns to it.
_TIME_PARAMETER: Final = re.compile(rf"(\[(?:{'|'.join(sorted(TIME_COLUMNS))})\]\s*[=<>]+\s*)\?")


@dataclass(frozen=True)
class _Server:
    """What a session must know of its server.

    :ivar max_packet: bytes of a statement.
    :ivar collation: distinguishes case, accents and trailing spaces; ``utf8mb4_bin`` ignores the latter.
    """

    is_mariadb: bool
    max_packet: int
    collation: str


_MARIADB_COLLATION, _MYSQL_COLLATION = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"

_UNKNOWN: Final = _Server(False, 1024 * 1024, _MYSQL_COLLATION)


class _Connection:
    """The driver's connection, with cursors of our own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.commit, self.rollback, self.close = inner.commit, inner.rollback, inner.close
        self.fileno = inner.fileno

    def cursor(self) -> _Cursor:
        return _Cursor(self._inner.cursor())


class _Cursor:
    """A DB-API cursor that fills in parameters itself: drivers differ in what they do with ``%%`` and without any.

    Rows are tuples, and timestamps are in UTC.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.close = inner.close

    @property
    def rowcount(self) -> int:
        return int(self._inner.rowcount)

    @property
    def description(self) -> Any:
        return self._inner.description

    def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> None:
        """Run a statement. ``%`` signs are doubled in one with parameters, or ``()``."""
        if isinstance(parameters, Mapping):
            statement %= {name: _literal(value) for name, value in parameters.items()}
        elif parameters is not None:
            statement %= tuple(_literal(value) for value in parameters)
        self._inner.execute(statement.encode())

    def fetchone(self) -> tuple[Any, ...] | None:
        row = self._inner.fetchone()
        return None if row is None else _to_tuple(row)

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        return [_to_tuple(row) for row in self._inner.fetchmany(size)]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [_to_tuple(row) for row in self._inner.fetchall()]


class MySqlDialect(WarehouseDialect):
    """MySQL and MariaDB. A page is inserted with a statement of several rows.

    :ivar server: known from the first connection on.
    """

    name = "mysql"
    placeholder = "%s"
    row_lock = " FOR UPDATE"
    max_identifier_length = 64
    clock = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"
    # The server compares names there without case, though they may differ by it.
    exists = (
        "SELECT count(*) > 0 FROM information_schema.tables WHERE table_schema = coalesce(%(schema)s, database())"
        " AND table_name = %(plain)s"
        " AND (@@lower_case_table_names <> 0 OR CAST(table_name AS BINARY) = CAST(%(plain)s AS BINARY))"
    )
    uses_indexes = True
    supports_append = True
    server = _UNKNOWN

    def connection_factory(self, hook: DbApiHookLike) -> Connect:
        def connect() -> _Connection:
            raw = hook.get_conn()
            try:
                check_driver(raw)
                raw.set_character_set("utf8mb4")  # whatever its extra says
            except BaseException:
                raw.close()
                raise
            return _Connection(raw)

        return connect

    def configure_connection(self, connection: _Connection) -> None:
        tx = connection.cursor()
        if self.server is _UNKNOWN:
            self.server = _read_server(tx)
        for statement in self._session(self.server):
            tx.execute(statement)
        tx.close()

    def _session(self, server: _Server) -> Iterator[str]:
        """Yield the statements that a session begins with."""
        settings = ["sql_mode = 'TRADITIONAL'", "autocommit = 0", "time_zone = '+00:00'", *_SETTINGS]
        if self.timeout is not None:
            limit = _MARIADB_TIMEOUT if server.is_mariadb else _MYSQL_TIMEOUT
            settings += [
                limit.format(seconds=self.timeout, milliseconds=self.timeout * 1_000),
                *(
                    f"{name} = {max(math.ceil(self.timeout), 1)}"
                    for name in ("innodb_lock_wait_timeout", "lock_wait_timeout")
                ),
                # Otherwise a client that is gone without a word keeps its locks for hours.
                f"wait_timeout = {math.ceil(SILENCE_FACTOR * self.timeout)}",
            ]
        yield f"SET NAMES utf8mb4 COLLATE {server.collation}"
        yield "SET " + ", ".join(f"SESSION {each}" for each in settings)
        # The default, REPEATABLE READ, locks gaps between rows: feeds in the same tables would meet deadlocks.
        yield "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        new = select_new_rows(tx, self, quoted, table, rows)
        if new:
            # Neither IGNORE nor ON DUPLICATE KEY UPDATE: they skip what any unique index of the table refuses.
            self._add(tx, quoted, table, new)
        return len(new)

    def append(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        try:
            self._add(tx, quoted, table, rows)
        except Exception as error:
            if _code(error) == _DUPLICATE:
                raise DuplicateRow(f"a row of {quoted} exists, or occurs twice") from error
            raise
        return len(rows)

    def compact(self, connection: Any, quoted: Sequence[str]) -> None:
        tx = connection.cursor()
        tx.execute("SET SESSION lock_wait_timeout = 5")  # whoever comes later waits behind it
        for name in quoted:
            tx.execute(f"OPTIMIZE TABLE {name}")
            *_, (_, _, _, result) = tx.fetchall()
            if result != "OK":
                raise WarehouseBusy(f"{name} has old rows in its file: {result}. Repeat the command")

    def needs_probe(self, tx: Any) -> bool:  # noqa: ARG002  # other databases speak MySQL's protocol, too
        return True

    def check_tables(self, tx: Any, names: Sequence[str], schema: str | None) -> None:
        # The SQL mode lets no other engine take the place of InnoDB, but whoever made the tables may have chosen one.
        tx.execute(
            "SELECT table_name, coalesce(engine, 'VIEW'), @@lower_case_table_names"  # noqa: S608
            " FROM information_schema.tables WHERE coalesce(engine, 'VIEW') <> 'InnoDB'"
            f" AND table_schema = coalesce(%s, database()) AND table_name IN ({', '.join('%s' for _ in names)})",
            (schema, *names),
        )
        for name, engine, folds_case in tx.fetchall():
            if name not in names and not folds_case:
                continue  # the query compares names without case
            raise UnsupportedWarehouse(
                f"the table {name} has the engine {engine}, which has no transactions, so a page could be loaded in "
                "part: change it to InnoDB (ALTER TABLE … ENGINE = InnoDB), then run `feed verify`"
            )

    def has_key(self, tx: Any, quoted: str, table: Table) -> bool:
        tx.execute(f"SHOW INDEX FROM {self.in_statement(quoted)} WHERE Key_name = 'PRIMARY'", ())
        return {column for _, _, _, _, column, *_ in tx.fetchall()} == set(table.primary_key.columns.keys())

    def is_conflict(self, error: BaseException) -> bool:
        return _code(error) in _CONFLICTS

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or _code(error) in _REFUSALS

    def sql(self) -> Dialect:
        return _SQL

    def adapt(self, statement: str) -> str:
        # A column of DATETIME takes no text that ends with a zone.
        statement = _TEXT_CAST.sub(r"\1", statement)
        return _TIME_PARAMETER.sub(r"\1CAST(LEFT(?, 26) AS DATETIME(6))", statement)

    def create_statements(self, table: Table) -> list[str]:
        statement = CreateTable(table, if_not_exists=True).compile(dialect=self.sql())
        # Only InnoDB has transactions, and the other row formats have no room for the keys.
        return [
            f"{str(statement).strip()} ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
            f" CHARACTER SET utf8mb4 COLLATE {self.server.collation}"
        ]

    def _add(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> None:
        insert = f"INSERT INTO {quoted} ({self.columns(table)}) VALUES "  # noqa: S608
        texts = _row_literals(table, rows)
        sizes = [len(text.encode()) + 1 for text in texts]
        room = self.server.max_packet - _PACKET_OVERHEAD - len(insert.encode())
        for batch in _batches(sizes, min(room, _MAX_STATEMENT)):
            if sum(sizes[batch]) <= room:
                tx.execute(insert + ",".join(texts[batch]))
            else:
                self._add_large(tx, insert, _row_values(table, rows[batch.start]), room)

    def _add_large(self, tx: Any, insert: str, row: Row, room: int) -> None:
        """Insert a row that is larger than a packet. Its large values are sent in parts, in variables of the session.

        :raises RowTooLarge: the server is not MariaDB.
        """
        if not self.server.is_mariadb:
            raise RowTooLarge(
                f"a row is larger than max_allowed_packet, which is {self.server.max_packet:,} bytes: raise it on the "
                "server"
            )
        mark = uuid.uuid4().hex  # in no value
        variables: list[str] = []
        expressions = []
        for value in row:
            if isinstance(value, (str, bytes)) and len(value) * _BYTES_PER_CHARACTER > room // (2 * len(row)):
                parts = list(_parts(value, room // _BYTES_PER_CHARACTER, mark))
                names = [f"@outbound_transfer_{len(variables) + number}" for number in range(len(parts))]
                for name, part in zip(names, parts, strict=True):
                    tx.execute(f"SET {name} = {_literal(part)}")
                variables += names
                expressions.append(_joined(names, mark))
            else:
                expressions.append(_literal(value))
        tx.execute(f"{insert}({','.join(expressions)})")
        tx.execute("SET " + ", ".join(f"{name} = NULL" for name in variables))


class _DdlCompiler(MySQLDDLCompiler):
    """Writes indexes into the statement that creates a table: each statement of DDL is a transaction of its own."""

    def create_table_constraints(self, table: Table, *args: Any, **options: Any) -> str:
        constraints = super().create_table_constraints(table, *args, **options)  # type: ignore[no-untyped-call]
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        return ", \n\t".join([constraints, *map(self._index, indexes)])

    def _index(self, index: Index) -> str:
        lengths = index.dialect_options["mysql"]["length"] or {}
        columns = (
            self.preparer.quote(column.name) + (f"({lengths[column.name]})" if column.name in lengths else "")
            for column in index.columns
        )
        return f"INDEX {self.preparer.quote(str(index.name))} ({', '.join(columns)})"


class _Sql(MySQLDialect):
    """Not the dialect of a driver, which may be missing."""

    ddl_compiler = _DdlCompiler


_SQL: Final = _Sql(paramstyle="format")


def _read_server(tx: _Cursor) -> _Server:
    """Return what the server is, by what it has: its version may be that of a proxy.

    :raises UnsupportedWarehouse: it has no collation that tells all texts apart.
    """
    tx.execute(
        "SELECT @@max_allowed_packet, max(collation_name) FROM information_schema.collations"  # noqa: S608
        f" WHERE collation_name IN ('{_MARIADB_COLLATION}', '{_MYSQL_COLLATION}')"
    )
    max_packet, collation = tx.fetchall()[0]
    if collation is None:
        raise UnsupportedWarehouse("The server is too old: MySQL 8.0.17, MariaDB 10.2 or a later version is needed")
    return _Server(str(collation) == _MARIADB_COLLATION, int(max_packet), str(collation))


def _code(error: BaseException) -> int | None:
    """Return the server's number of an error."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else None


def _to_tuple(row: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
    # Connections may be configured to return dictionaries.
    return tuple(_in_utc(value) for value in (row.values() if isinstance(row, Mapping) else row))


def _in_utc(value: Any) -> Any:
    is_naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if is_naive else value


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        # In hexadecimal where a quote or a backslash would depend on the session's SQL mode.
        return f"'{value}'" if _is_plain(value) else f"_utf8mb4 X'{value.encode().hex()}'"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"X'{bytes(value).hex()}'"
    if isinstance(value, (int, float)):
        return repr(value + 0)  # a bool is a number
    raise TypeError(f"a parameter is text, bytes, a number or None, not {type(value).__name__}")


def _row_values(table: Table, row: Row) -> Row:
    """Return a row's values as its columns take them."""
    return [_column_values(column.name, (value,))[0] for column, value in zip(table.columns, row, strict=True)]


def _row_literals(table: Table, rows: Sequence[Row]) -> list[str]:
    """Return the rows as literals, with parentheses."""
    columns = zip(table.columns, zip(*rows, strict=True), strict=True)
    literals = [_column_literals(column.name, values) for column, values in columns]
    return [f"({','.join(row)})" for row in zip(*literals, strict=True)]


def _column_literals(name: str, values: Sequence[Any]) -> Sequence[str]:
    if values.count(values[0]) == len(values):
        return [_literal(_column_values(name, values[:1])[0])] * len(values)
    values = _column_values(name, values)
    # Most columns are text with nothing to escape; one look at the joined text finds that out.
    if set(map(type, values)) == {str} and _is_plain("".join(values)):
        return [f"'{value}'" for value in values]
    return list(map(_literal, values))


def _column_values(name: str, values: Sequence[Any]) -> Sequence[Any]:
    # A column of DATETIME takes no text that ends with a zone.
    return [value[:-1] if value else value for value in values] if name in TIME_COLUMNS else values


def _is_plain(text: str) -> bool:
    return not ("\\" in text or "'" in text or "\0" in text)


def _batches(sizes: Sequence[int], room: int) -> Iterator[slice]:
    """Yield neighbours whose sizes sum up to ``room`` at most; one that is larger stands alone."""
    first, total = 0, 0
    for at, size in enumerate(sizes):
        if at > first and total + size > room:
            yield slice(first, at)
            first, total = at, 0
        total += size
    yield slice(first, len(sizes))


def _parts(value: str | bytes, length: int, mark: str) -> Iterator[str | bytes]:
    """Yield parts of a value for :func:`_joined`: a mark precedes each but the first."""
    for at in range(0, len(value), length):
        part: Any = value[at : at + length]
        yield (mark if isinstance(value, str) else mark.encode()) + part if at else part


def _joined(names: Sequence[str], mark: str) -> str:
    """Return an expression that joins variables.

    ``CONCAT`` and ``GROUP_CONCAT`` return no text that is longer than a packet. ``MAKE_SET`` does, with commas between
    the parts, of which it takes 64.
    """
    if len(names) == 1:
        return names[0]
    joined = [f"MAKE_SET({2**64 - 1}, {', '.join(names[at : at + 64])})" for at in range(0, len(names), 64)]
    return f"REGEXP_REPLACE(MAKE_SET({2**64 - 1}, {', '.join(joined)}), ',{mark}', '')"
