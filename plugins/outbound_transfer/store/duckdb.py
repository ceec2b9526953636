"""DuckDB for SQLAlchemy: PostgreSQL's SQL, which it reads, over the connection of a hook."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect, PGIdentifierPreparer

#: The URL of the dialect: the package duckdb-engine has the shorter name.
URL: Final = "outbound_transfer_duckdb://"


class Connection:
    """A connection that is its own cursor: DuckDB's cursors have transactions of their own."""

    def __init__(self, connection: Any) -> None:
        self._connection, self.rowcount, self.description = connection, -1, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> _Cursor:
        """Return a cursor of the same transaction."""
        return _Cursor(self._connection)


class _Cursor(Connection):
    def execute(self, statement: str, parameters: Any = ()) -> None:
        self._connection.execute(statement, parameters)
        self.description = self._connection.description
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):  # their only row is the number of rows
            (self.rowcount,), self.description = self._connection.fetchone(), None

    def close(self) -> None:
        """Leave the connection open."""


class _Compiler(PGCompiler):
    def for_update_clause(self, select: Any, **_: Any) -> str:  # noqa: ARG002  # a file has one transaction at a time
        return ""


class _Preparer(PGIdentifierPreparer):
    def _requires_quotes(self, value: str) -> bool:  # noqa: ARG002  # DuckDB reserves other words than PostgreSQL
        return True


class _Bytes(sa.LargeBinary):
    def bind_processor(self, dialect: sa.Dialect) -> None:
        """Return nothing: DuckDB's module has no Binary()."""


class DuckDb(PGDialect):
    """What the store needs of a dialect."""

    name = "duckdb"
    supports_statement_cache = True
    default_paramstyle = "qmark"
    preparer = _Preparer
    statement_compiler = _Compiler
    colspecs = {**PGDialect.colspecs, sa.LargeBinary: _Bytes}  # noqa: RUF012

    @classmethod
    def import_dbapi(cls) -> Any:
        import duckdb

        return duckdb

    def initialize(self, connection: sa.Connection) -> None:  # noqa: ARG002  # it would ask what only PostgreSQL has
        self.default_schema_name = "main"

    def do_begin(self, dbapi_connection: Any) -> None:
        dbapi_connection.begin()

    def do_rollback(self, dbapi_connection: Any) -> None:
        with suppress(self.loaded_dbapi.Error):  # after a commit there is no transaction
            dbapi_connection.rollback()

    def has_table(self, connection: sa.Connection, table_name: str, schema: str | None = None, **_: Any) -> bool:
        query = (
            "SELECT count(*) FROM information_schema.tables WHERE table_catalog = current_database()"
            " AND table_name = ? AND table_schema = coalesce(?, current_schema())"
        )
        return bool(connection.exec_driver_sql(query, (table_name, schema)).scalar())


registry.register(URL.removesuffix("://"), __name__, DuckDb.__name__)
