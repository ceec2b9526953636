"""Snowflake, a preview: checked against an emulator, not against an account (docs/snowflake.md).

Snowflake enforces no keys. Whoever writes rows with a key therefore first locks the row ``lock`` of the table
``schema_version``, which exists from the statement on that creates the table: one session at a time writes, and each
statement after the lock sees what the session before has committed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.sql.compiler import DDLCompiler, IdentifierPreparer

from outbound_transfer.warehouse.dialects.base import Row, RowTooLarge, WarehouseDialect
from outbound_transfer.warehouse.errors import UnsupportedWarehouse

#: Seconds to wait for a lock. Snowflake gives up the transaction of a session that is gone after five minutes.
_LOCK_TIMEOUT: Final = 360

#: Seconds that a statement may take with all of its waiting; an idle warehouse starts in seconds.
_STATEMENT_TIMEOUT: Final = 600

#: Bytes of the values in a statement's text: Snowflake asks for at most 1 MB, and keeps no more of it.
_MAX_VALUES: Final = 900_000

#: Bytes of a JSON value that is stored as such, so that two of them fit into a statement.
_MAX_JSON: Final = 400_000

#: Characters of a text, of at most four bytes, or bytes, of two digits, that one statement appends.
_MAX_PART: Final = 200_000

#: Names that Snowflake's users write without quotes, and in any case.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")

#: Most JSON has neither of these, which shows that a VARIANT has room for its numbers.
_LARGE_NUMBER: Final = re.compile(r"[0-9.]{39}|[0-9][eE]")

#: Digits of a fixed-point number, and of a number that becomes a double and stays the same.
_MAX_DIGITS: Final = 38
_MAX_DOUBLE_DIGITS: Final = 15
_MAX_EXPONENT: Final = 290

#: How values of a type are written; others are taken as they are.
_CASTS: Final = {
    "VARIANT": "PARSE_JSON({})",
    "TIMESTAMP_TZ": "CAST({} AS TIMESTAMP_TZ)",
    "BOOLEAN": "CAST({} AS BOOLEAN)",
}

#: Errors of a table or a schema that does not exist, or that the role may not see.
_MISSING: Final = (2003, 2043)

#: SQLSTATE of statements that another session or a timeout has stopped.
_CANCELED: Final = "57014"

#: Typographic: with it, nothing in a comment needs an escape.
_APOSTROPHE: Final = "\u2019"

_LOCK_TABLE: Final = "schema_version"


class SnowflakeDialect(WarehouseDialect):
    """Snowflake. Rows are values in the text of a statement, of at most 1 MB."""

    name = "snowflake"
    placeholder = "%s"
    max_identifier_length = 255
    forbidden_in_names = "\0%"  # the connector reads %% as % only in a statement that has parameters
    preview = (
        "Snowflake is a preview: it was checked against an emulator, not against an account. Check yours with "
        "outbound-transfer-warehouse-check"
    )
    enforces_keys = False
    begin = ("BEGIN TRANSACTION",)
    # It changes a value: an optimizer may leave out an update that changes nothing, as DuckDB's does.
    lock = ("UPDATE {schema_version} SET [version] = [version] + 1 WHERE [component] = 'lock'",)

    def check_group(self, name: str) -> None:
        if name not in ("accounts", "feed", "transfers"):
            raise UnsupportedWarehouse(
                f"Snowflake (preview) has the event feed and the transfers only, not the tables of '{name}': they are "
                "written by every task, row by row. Use PostgreSQL, MySQL, MariaDB, SQLite or DuckDB for them"
            )

    def configure_connection(self, connection: Any) -> None:
        lock, statement = (self.timeout or seconds for seconds in (_LOCK_TIMEOUT, _STATEMENT_TIMEOUT))
        connection.cursor().execute(
            "ALTER SESSION SET AUTOCOMMIT = FALSE, TIMEZONE = 'UTC', TIMESTAMP_INPUT_FORMAT = 'AUTO', "
            f"LOCK_TIMEOUT = {math.ceil(lock)}, STATEMENT_TIMEOUT_IN_SECONDS = {math.ceil(statement)}, "
            "ABORT_DETACHED_QUERY = TRUE, QUERY_TAG = 'outbound_transfer'"
        )

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        key = [list(table.columns).index(column) for column in table.primary_key]
        new = {tuple(row[at] for at in key): row for row in reversed(rows)}
        parts = _chunk_rows(list(reversed(new.values())))
        return sum(self._insert_part(tx, quoted, table, part) for part in parts)

    def _insert_part(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        if _size(rows[0]) > _MAX_VALUES:
            return self._insert_large(tx, quoted, table, rows[0])
        self._insert_new(tx, quoted, table, rows)
        return self.rowcount(tx)

    def _insert_new(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> None:
        names = [f"new.c{at}" for at, _ in enumerate(table.columns)]
        values = (
            _CASTS.get(column.type.compile(self.sql()), "{}").format(name)
            for name, column in zip(names, table.columns, strict=True)
        )
        marks = f"({', '.join('%s' for _ in names)})"
        same = (
            f"known.{self.quote(column.name)} = new.c{list(table.columns).index(column)}"
            for column in table.primary_key
        )
        tx.execute(
            f"INSERT INTO {quoted} ({self.columns(table)}) SELECT {', '.join(values)}"  # noqa: S608
            f" FROM (VALUES {', '.join(marks for _ in rows)}) AS new ({', '.join(name[4:] for name in names)})"
            f" WHERE NOT EXISTS (SELECT 1 FROM {quoted} AS known WHERE {' AND '.join(same)})",
            [value for row in rows for value in row],
        )

    def _insert_large(self, tx: Any, quoted: str, table: Table, row: Row) -> int:
        """Insert a row that needs several statements: its texts and bytes are appended, part by part."""
        key = [column.name for column in table.primary_key]
        values = dict(zip((column.name for column in table.columns), row, strict=True))
        large = {
            column.name: values[column.name]
            for column in table.columns
            if column.name not in key
            and column.type.compile(self.sql()) not in _CASTS
            and _is_large(values[column.name])
        }
        first = [large[name][:0] if name in large else value for name, value in values.items()]
        if _size(first) > _MAX_VALUES:
            raise RowTooLarge(f"a row of {quoted} has {_size(row):,} bytes, and a statement at most 1 MB")
        self._insert_new(tx, quoted, table, [first])
        if not self.rowcount(tx):
            return 0
        where = " AND ".join(f"{self.quote(name)} = %s" for name in key)
        for name, value in large.items():
            append = f"UPDATE {quoted} SET {self.quote(name)} = {self.quote(name)} || %s WHERE {where}"  # noqa: S608
            for at in range(0, len(value), _MAX_PART):
                tx.execute(append, [value[at : at + _MAX_PART], *(values[each] for each in key)])
        return 1

    def keeps_json(self, text: str) -> bool:
        return len(text.encode()) <= _MAX_JSON and (not _LARGE_NUMBER.search(text) or all(_numbers(text)))

    def is_missing_table(self, error: BaseException) -> bool:
        return getattr(error, "errno", None) in _MISSING

    def is_refusal(self, error: BaseException) -> bool:
        # The connector has one class for what a statement or its values cause, and for a lock that was waited for.
        is_of_statement = any(each.__name__ == "ProgrammingError" for each in type(error).__mro__)
        return super().is_refusal(error) or (is_of_statement and getattr(error, "sqlstate", None) != _CANCELED)

    def sql(self) -> Dialect:
        return _SnowflakeSql(paramstyle="format")

    def quote(self, name: str) -> str:
        return _quote(name)

    def create_statements(self, table: Table) -> list[str]:
        if not table.name.endswith(_LOCK_TABLE):
            return super().create_statements(table)
        # With its row, in one statement: of two sessions that create the table, the later gets an error.
        columns = ", ".join(f"{self.quote(each.name)} {each.type.compile(self.sql())}" for each in table.columns)
        name = ".".join(self.quote(part) for part in (table.schema, table.name) if part)
        return [
            f"CREATE TABLE {name} ({columns}){_comment(' COMMENT =', table.comment)}"
            " AS SELECT 'lock', 0, CAST(CURRENT_TIMESTAMP() AS TIMESTAMP_TZ)"
        ]


def _quote(name: str) -> str:
    """Return a name as Snowflake reads it without quotes, if it can be written so; otherwise as it is given."""
    name = str(name)  # SQLAlchemy's quoted names are not changed by upper()
    if _PLAIN_NAME.fullmatch(name):
        return f'"{name.upper()}"'
    if len(name) > 2 and name[0] == name[-1] == '"':  # the user has quoted it: its case matters
        name = name[1:-1]
    return '"' + name.replace('"', '""') + '"'


def _chunk_rows(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows in parts that fit into a statement, and a row that does not by itself."""
    part: list[Row] = []
    total = 0
    for row in rows:
        size = _size(row)
        if part and total + size > _MAX_VALUES:
            yield part
            part, total = [], 0
        part.append(row)
        total += size
    if part:
        yield part


def _size(row: Row) -> int:
    """Return the bytes of a row's values in the text of a statement."""
    return sum(map(_size_of, row))


def _size_of(value: Any) -> int:
    if isinstance(value, bytes):
        return 2 * len(value) + 5
    text = str(value)
    return len(text.encode()) + sum(map(text.count, "\\\n\r'")) + 4


def _is_large(value: Any) -> bool:
    return isinstance(value, (str, bytes)) and len(value) > 1_000


def _numbers(text: str) -> list[bool]:
    """Return for each number of a JSON text whether a VARIANT has the same value."""
    kept: list[bool] = []

    def number(digits: str) -> None:
        kept.append(_keeps_number(digits))

    json.loads(text, parse_int=number, parse_float=number)
    return kept


def _keeps_number(text: str) -> bool:
    digits, _, exponent = text.lower().lstrip("-").partition("e")
    count = len(digits.replace(".", ""))
    return count <= (_MAX_DOUBLE_DIGITS if exponent else _MAX_DIGITS) and abs(int(exponent or 0)) <= _MAX_EXPONENT


def _comment(keyword: str, text: str | None) -> str:
    return f"{keyword} '{text.replace(chr(39), _APOSTROPHE)}'" if text else ""


class _Names(IdentifierPreparer):
    def quote(self, ident: str, force: Any = None) -> str:  # noqa: ARG002
        return _quote(ident)

    def quote_schema(self, schema: str, force: Any = None) -> str:  # noqa: ARG002
        return _quote(schema)


class _Ddl(DDLCompiler):
    def get_column_specification(self, column: Any, **kwargs: Any) -> str:
        specification = super().get_column_specification(column, **kwargs)  # type: ignore[no-untyped-call]
        return f"{specification}{_comment(' COMMENT', column.comment)}"

    def post_create_table(self, table: Table) -> str:
        return _comment(" COMMENT =", table.comment)


class _SnowflakeSql(DefaultDialect):
    """What differs in the statements that create tables; Snowflake's own package for SQLAlchemy is not required."""

    name = "snowflake"
    preparer = _Names
    ddl_compiler = _Ddl
