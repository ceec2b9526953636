"""PostgreSQL, over psycopg 2 and 3."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Table

from outbound_transfer.warehouse.dialects.base import SILENCE_FACTOR, DialectT, Row, WarehouseDialect, select_new_rows
from outbound_transfer.warehouse.dialects.refused import check_names
from outbound_transfer.warehouse.errors import DuplicateRow, UnsupportedWarehouse, UnusableTable

_UNIQUE_VIOLATION: Final = "23505"

#: Classes of errors that rows may cause: data, constraints, limits of size and depth, triggers, limits of memory.
_ROW_ERROR_CLASSES: Final = ("22", "23", "54", "P0", "XX")


#: Databases that speak PostgreSQL's protocol and name themselves in the version.
_OTHERS: Final = ("cockroachdb", "-yb-", "greenplum", "materialize", "questdb", "risingwave", "cratedb")


class PostgresDialect(WarehouseDialect):
    """PostgreSQL. Rows are copied."""

    name = "postgresql"
    placeholder = "%s"
    row_lock = " FOR UPDATE"
    max_identifier_length = 63
    # A stricter default of the database would turn a lost race for the cursor into an error.
    begin = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED",)
    # Two sessions that create one table at the same time collide in the catalog.
    lock = ("SELECT pg_advisory_xact_lock(8029759185026510692)",)
    clock = "SELECT extract(epoch FROM clock_timestamp())"
    # Not to_regclass(): a session that has looked for a table before may not see that another one has created it since.
    exists = (
        "SELECT count(*) > 0 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE relname = %(plain)s"
        " AND (nspname = %(schema)s OR %(schema)s::text IS NULL AND nspname = ANY(current_schemas(true)))"
    )
    uses_indexes = True
    sets_comments = True
    supports_append = True
    supports_array_parameters = True

    def with_timeout(self: DialectT, seconds: float) -> DialectT:
        changed = super().with_timeout(seconds)
        # Of the transaction alone: a pooler may give the session to others.
        changed.begin = (
            *self.begin,
            f"SET LOCAL statement_timeout = {seconds * 1_000:.0f}",
            # Otherwise a client that is gone without a word keeps its locks for hours.
            f"SET LOCAL idle_in_transaction_session_timeout = {SILENCE_FACTOR * seconds * 1_000:.0f}",
        )
        return changed

    def needs_probe(self, tx: Any) -> bool:
        tx.execute("SELECT version()", ())
        version = str(_only_value(tx.fetchone())).lower()
        check_names(name for name in ("redshift",) if name in version)
        return any(name in version for name in _OTHERS)

    def check_tables(self, tx: Any, names: Sequence[str], schema: str | None) -> None:
        tx.execute(
            "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " WHERE relpersistence = 'u' AND nspname = coalesce(%s, current_schema()) AND relname = ANY(%s)",
            (schema, list(names)),
        )
        for row in tx.fetchall():
            raise UnsupportedWarehouse(
                f"the table {_only_value(row)} is UNLOGGED, so that a crash of the server empties it: "
                "ALTER TABLE … SET LOGGED, then run `feed verify`"
            )

    def configure_connection(self, connection: Any) -> None:
        connection.autocommit = False  # psycopg 2 and 3 alike, whatever the connection's extra says

    def compact(self, connection: Any, quoted: Sequence[str]) -> None:
        connection.autocommit = True  # it is refused in a transaction
        connection.cursor().execute("SET lock_timeout = '5s'")  # whoever comes later waits behind it
        foreign = "SELECT 1 FROM pg_class WHERE oid = %s::regclass AND NOT pg_has_role(relowner, 'USAGE')"
        for name in quoted:
            tx = connection.cursor()
            tx.execute(foreign, (name,))
            if tx.fetchall():  # of which VACUUM would only warn
                raise UnusableTable(f"{name} has old rows in its file: repeat the command as the table's owner")
            tx.execute(f"VACUUM (FULL, ANALYZE) {name}")  # statistics have values, too

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        # COPY has no ON CONFLICT. Readers that race for a page queue at the cursor's row, so a new row stays new.
        new = select_new_rows(tx, self, quoted, table, rows)
        if new:
            self._copy(tx, quoted, table, new)
        return len(new)

    def append(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        try:
            self._copy(tx, quoted, table, rows)
        except Exception as error:
            if _sqlstate(error) == _UNIQUE_VIOLATION:
                raise DuplicateRow(f"a row of {quoted} exists, or occurs twice") from error
            raise
        return len(rows)

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or _sqlstate(error).startswith(_ROW_ERROR_CLASSES)

    def _copy(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> None:
        # The connection may have another encoding, so the statement names that of the text.
        statement = f"COPY {quoted} ({self.columns(table)}) FROM STDIN (ENCODING 'UTF8')"
        text = _copy_text(rows).encode()
        if hasattr(tx, "copy_expert"):  # psycopg 2
            tx.copy_expert(statement, io.BytesIO(text))
            return
        with tx.copy(statement) as copy:
            copy.write(text)


def _only_value(row: Any) -> Any:
    # Connections may be configured to return dictionaries.
    return next(iter(row.values())) if isinstance(row, Mapping) else row[0]


def _sqlstate(error: BaseException) -> str:
    # psycopg 3 and 2; their classes are not imported for this, as either may be missing.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _copy_text(rows: Sequence[Row]) -> str:
    """Return the rows in COPY's text format."""
    columns = [_column(values) for values in zip(*rows, strict=True)]
    return "".join(["\t".join(row) + "\n" for row in zip(*columns, strict=True)])


def _column(values: Sequence[Any]) -> Sequence[str]:
    if values.count(values[0]) == len(values):
        return [_field(values[0])] * len(values)
    # Most columns are text with nothing to escape; one look at the joined text finds that out.
    if set(map(type, values)) == {str} and _is_plain("".join(values)):
        return values
    return list(map(_field, values))


def _is_plain(text: str) -> bool:
    return not ("\\" in text or "\n" in text or "\r" in text or "\t" in text)


def _field(value: Any) -> str:
    if value is None:
        return "\\N"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
