"""Any other database with a ``DbApiHook``: portable statements."""

from __future__ import annotations

from typing import Any

from outbound_transfer.warehouse.dialects.base import Connect, DbApiHookLike, WarehouseDialect


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

    def is_refusal(self, error: BaseException) -> bool:
        # Drivers differ in their errors for refused values; inserting the rows alone shows whether values are refused.
        return isinstance(error, Exception)
