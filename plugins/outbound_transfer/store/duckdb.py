"""DuckDB's files; and DuckDB for SQLAlchemy: PostgreSQL's SQL, which it reads, over the connection of a hook."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect, PGIdentifierPreparer

#: The URL of the dialect: the package duckdb-engine has the shorter name.
URL: Final = "outbound_transfer_duckdb://"

T = TypeVar("T")

#: Bytes at the start of a file that every checkpoint changes.
_HEADER_SIZE: Final = 3 * 4_096

#: A descriptor of each file that was opened. They stay open: at the close of any, this process would lose its locks of
#: the file (fcntl(2)).
_descriptors: Final[dict[Path, int]] = {}
_lock: Final = threading.Lock()


class StaleFile(Exception):
    """Another process has changed the file while it was opened."""


def open_unchanged(path: Path, open_file: Callable[[], T], close_file: Callable[[T], object]) -> T:
    """Open a file, and close it if another process has changed it meanwhile; create it if it is missing.

    DuckDB 2.0.0 reads the header before it locks the file. With an outdated one, it would write over what another
    process has committed in between.

    :return: what ``open_file`` returns.
    :raises StaleFile: DuckDB may have read the file before another process has changed it.
    """
    if not path.exists():
        _create_file(path)
    header = read_header(path)
    try:
        opened = open_file()
    except Exception as error:
        if read_header(path) == header:
            raise
        raise StaleFile from error
    if read_header(path) != header:
        close_file(opened)
        raise StaleFile
    return opened


def read_header(path: Path) -> bytes:
    """Return the bytes at the start of a file that every checkpoint changes."""
    with _lock:
        descriptor = _descriptors.get(path)
        if descriptor is None or not os.path.samestat(os.fstat(descriptor), path.stat()):
            if descriptor is not None:  # of another file, which had this path
                os.close(_descriptors.pop(path))
            descriptor = _descriptors[path] = os.open(path, os.O_RDONLY)
        return os.pread(descriptor, _HEADER_SIZE, 0)


def _create_file(path: Path) -> None:
    """Create a file, under another name first.

    DuckDB looks whether there is a file before it locks it. Of two processes that create one, the later would write an
    empty database over the tables of the other; and a third would refuse a file that has no header yet.
    """
    import duckdb

    new = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        duckdb.connect(new).close()
        path.hardlink_to(new)
    except FileExistsError:
        pass  # another process was faster
    except Exception:
        duckdb.connect(path).close()  # says what is wrong, or creates it on a disk without links
    finally:
        with suppress(OSError):
            new.unlink()


class Connection:
    """A connection that is its own cursor: DuckDB's cursors have transactions of their own."""

    def __init__(self, connection: Any) -> None:
        self._connection, self.cursor, self.rowcount, self.description = (
            connection,
            lambda: _Cursor(connection),
            -1,
            None,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


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
