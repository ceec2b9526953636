"""MySQL and MariaDB, over mysqlclient.

A session takes nothing from the server's defaults: not the character set (latin1 in MariaDB), the collation (blind to
case and accents), the SQL mode (a lax one changes values silently), the isolation, nor the engine of tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.engine import Dialect

from outbound_transfer.store.engine import HookLike
from outbound_transfer.store.errors import UnsupportedDatabase
from outbound_transfer.store.tables import TIME_COLUMNS
from outbound_transfer.warehouse.dialects.base import (
    SILENCE_FACTOR,
    Connect,
    Row,
    WarehouseDialect,
)
from outbound_transfer.warehouse.dialects.refused import check_driver

#: Maximum number of keys in a query.
_MAX_KEYS_PER_QUERY: Final = 500

#: Bytes of a packet that are not the values of a row.
_PACKET_OVERHEAD: Final = 4_096

#: Seconds that a statement may take in MariaDB; milliseconds that a query may take in MySQL.
_MARIADB_TIMEOUT: Final = "max_statement_time = {seconds:.3f}"
_MYSQL_TIMEOUT: Final = "max_execution_time = {milliseconds:.0f}"

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


class MySqlDialect(WarehouseDialect):
    """MySQL and MariaDB. A page is inserted with a statement of several rows.

    :ivar server: known from the first connection on.
    """

    name = "mysql"
    placeholder = "%s"
    row_lock = " FOR UPDATE"
    clock = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"
    server = _UNKNOWN

    def connection_factory(self, hook: HookLike) -> Connect:
        def connect() -> Any:
            connection = hook.get_conn()
            try:
                check_driver(connection)
                _undo_options(connection)
            except BaseException:
                connection.close()
                raise
            return connection

        return connect

    def configure_connection(self, connection: Any) -> None:
        tx = connection.cursor()
        if self.server is _UNKNOWN:
            self.server = _read_server(tx)
        for statement in self._session(self.server):
            tx.execute(statement)
        tx.close()

    def _session(self, server: _Server) -> Iterator[str]:
        """Yield the statements that a session begins with."""
        settings = ["sql_mode = 'TRADITIONAL'", "autocommit = 0", "time_zone = '+00:00'"]
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

    # Neither IGNORE nor ON DUPLICATE KEY UPDATE: these skip what any unique index refuses.
    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        new = [_in_columns(table, row) for row in _select_new_rows(tx, self, quoted, table, rows)]
        self._check_sizes(new)
        if new:
            marks = ", ".join(self.placeholder for _ in table.columns)
            tx.executemany(f"INSERT INTO {self.in_statement(quoted)} ({self.columns(table)}) VALUES ({marks})", new)  # noqa: S608
        return len(new)

    def _check_sizes(self, rows: Sequence[Row]) -> None:
        """Check that each row fits into a packet, where escapes may double its size.

        :raises ValueError: a row does not.
        """
        for row in rows:
            size = sum(
                len(each.encode() if isinstance(each, str) else each) for each in row if isinstance(each, str | bytes)
            )
            if 2 * size + _PACKET_OVERHEAD > self.server.max_packet:
                raise ValueError(
                    f"a row of {size:,} bytes may be larger than max_allowed_packet, which is "
                    f"{self.server.max_packet:,} bytes: raise it on the server to more than twice the row"
                )

    def sql(self) -> Dialect:
        dialect = MySQLDialect(paramstyle="format")
        dialect.is_mariadb = self.server.is_mariadb  # it decides on the collation of texts
        return dialect

    def is_conflict(self, error: BaseException) -> bool:
        return _code(error) in _CONFLICTS

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or _code(error) in _REFUSALS

    def adapt(self, statement: str) -> str:
        # A column of DATETIME takes no text that ends with a zone.
        statement = _TEXT_CAST.sub(r"\1", statement)
        return _TIME_PARAMETER.sub(r"\1CAST(LEFT(?, 26) AS DATETIME(6))", statement)


def _read_server(tx: Any) -> _Server:
    """Return what the server is, by what it has: its version may be that of a proxy.

    :raises UnsupportedDatabase: it has no collation that tells all texts apart.
    """
    tx.execute(
        "SELECT @@max_allowed_packet, max(collation_name) FROM information_schema.collations"  # noqa: S608
        f" WHERE collation_name IN ('{_MARIADB_COLLATION}', '{_MYSQL_COLLATION}')"
    )
    max_packet, collation = tx.fetchall()[0]
    if collation is None:
        raise UnsupportedDatabase("The server is too old: MySQL 8.0.17, MariaDB 10.2 or a later version is needed")
    return _Server(str(collation) == _MARIADB_COLLATION, int(max_packet), str(collation))


def _code(error: BaseException) -> int | None:
    """Return the server's number of an error."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else None


def _undo_options(connection: Any) -> None:
    """Undo what the extra of a connection may say of texts and cursors; timestamps are in UTC."""
    from MySQLdb.constants import FIELD_TYPE
    from MySQLdb.cursors import Cursor
    from MySQLdb.times import DateTime_or_None

    def read_time(text: str) -> datetime | None:
        found: datetime | None = DateTime_or_None(text)
        return found and found.replace(tzinfo=UTC)

    connection.set_character_set("utf8mb4")
    connection.cursorclass = Cursor
    connection.converter[FIELD_TYPE.DATETIME] = read_time


def _in_columns(table: Table, row: Row) -> Row:
    """Return a row's values as its columns take them: DATETIME takes no text that ends with a zone."""
    columns = zip(table.columns, row, strict=True)
    return [value[:-1] if value and column.name in TIME_COLUMNS else value for column, value in columns]


def _select_new_rows(tx: Any, dialect: WarehouseDialect, quoted: str, table: Table, rows: Sequence[Row]) -> list[Row]:
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
        known.update(tuple(row) for row in tx.fetchall())
    return [row for each, row in reversed(new.items()) if each not in known]


def _chunk_keys(keys: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Return groups of a few hundred keys at most that differ in their last part only."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in keys:
        groups.setdefault(key[:-1], []).append(key)
    size = _MAX_KEYS_PER_QUERY
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]
