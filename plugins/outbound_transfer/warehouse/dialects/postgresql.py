"""PostgreSQL, over psycopg 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Table

from outbound_transfer.warehouse.dialects.base import SILENCE_FACTOR, DialectT, Row, WarehouseDialect
from outbound_transfer.warehouse.errors import UnusableTable

#: Classes of errors that rows may cause: data, constraints, limits of size and depth, triggers, limits of memory.
_ROW_ERROR_CLASSES: Final = ("22", "23", "54", "P0", "XX")

#: Of one statement.
_MAX_PARAMETERS: Final = 65_535


class PostgresDialect(WarehouseDialect):
    """PostgreSQL. A page is inserted with one statement."""

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
        size, new = _MAX_PARAMETERS // len(table.columns), 0
        marks = f"({', '.join('%s' for _ in table.columns)})"
        into = f"INSERT INTO {self.in_statement(quoted)} ({self.columns(table)})"
        for at in range(0, len(rows), size):
            part = rows[at : at + size]
            tx.execute(
                f"{into} VALUES {', '.join(marks for _ in part)} ON CONFLICT ({self.key(table)}) DO NOTHING",
                # Texts take the types of their columns. In arrays, psycopg takes 150 times the size of a long text.
                [value if value is None or isinstance(value, bytes) else str(value) for row in part for value in row],
            )
            new += self.rowcount(tx)
        return new

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or _sqlstate(error).startswith(_ROW_ERROR_CLASSES)


def _sqlstate(error: BaseException) -> str:
    # psycopg 3 and 2; their classes are not imported for this, as either may be missing.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
