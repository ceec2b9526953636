"""Any other database with a ``DbApiHook``: portable statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table

from outbound_transfer.warehouse.dialects.base import (
    Connect,
    DbApiHookLike,
    Row,
    WarehouseDialect,
    select_new_rows,
)


class GenericDialect(WarehouseDialect):
    """Portable SQL.

    :param name: the database's name in SQLAlchemy; standard SQL is used for an unknown one.
    :param placeholder: a parameter in a statement: ``%s`` or ``?``.
    """

    max_identifier_length = 63
    needs_probe = True

    def __init__(self, name: str, placeholder: str) -> None:
        self.name, self.placeholder = name, placeholder

    def connection_factory(self, hook: DbApiHookLike) -> Connect:
        def connect() -> Any:
            connection = hook.get_conn()
            if hook.supports_autocommit:  # the others begin transactions by themselves
                hook.set_autocommit(connection, False)
            return connection

        return connect

    def insert(self, tx: Any, quoted: str, table: Table, rows: Sequence[Row]) -> int:
        new = select_new_rows(tx, self, quoted, table, rows)
        if new:
            placeholders = ", ".join(self.placeholder for _ in table.columns)
            tx.executemany(
                f"INSERT INTO {self.in_statement(quoted)} ({self.columns(table)}) VALUES ({placeholders})",  # noqa: S608
                [tuple(row) for row in new],
            )
        return len(new)

    def is_refusal(self, error: BaseException) -> bool:
        # Drivers differ in their errors for refused values; inserting the rows alone shows whether values are refused.
        return isinstance(error, Exception)
