"""The analysts' views: a file of SQL for each database that has them. include/sql/README.md describes their columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.dialects import DIALECTS
from outbound_transfer.warehouse.errors import MissingTables, UnsupportedWarehouse
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX
from outbound_transfer.warehouse.tables import TABLES

_FOLDER: Final = Path(__file__).parent
_NAME: Final = re.compile(rf"\b{DEFAULT_PREFIX}(\w+)")


def list_databases() -> list[str]:
    """Return the names of the databases that have views."""
    return sorted(file.stem for file in _FOLDER.glob("*.sql"))


def render_views(database: str, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> str:
    """Return the statements that replace the views.

    :param database: one of :func:`list_databases`.
    :param prefix: prefix of the names of tables and views.
    :param schema: their schema; without one, names are not qualified.
    :raises UnsupportedWarehouse: there are no views for this database.
    """
    file = _FOLDER / f"{database}.sql"
    if database not in list_databases():
        raise UnsupportedWarehouse(f"There are no views for {database}, but for {', '.join(list_databases())}.")
    text = file.read_text()
    if (prefix, schema) == (DEFAULT_PREFIX, None):
        return text
    return _NAME.sub(_qualifier(DIALECTS[database]().quote, prefix, schema), text)


def _qualifier(quote: Callable[[str], str], prefix: str, schema: str | None) -> Callable[[re.Match[str]], str]:
    def qualified(found: re.Match[str]) -> str:
        return ".".join(quote(part) for part in (schema, prefix + found[1]) if part)

    return qualified


def create_views(warehouse: Warehouse) -> list[str]:
    """Create the views, or replace them; return their names.

    :raises UnsupportedWarehouse: there are none for this database.
    :raises MissingTables: a table that they read was not created yet. Nothing is changed.
    """
    text = render_views(warehouse.dialect.name, prefix=warehouse.prefix, schema=warehouse.schema)
    names = set(_NAME.findall((_FOLDER / f"{warehouse.dialect.name}.sql").read_text()))
    _check_tables(warehouse, names)
    with warehouse.transaction() as tx:
        for statement in re.sub(r"^--.*\n", "", text, flags=re.MULTILINE).split(";\n"):
            if statement.strip():
                tx.execute(statement)
    return sorted(warehouse.prefix + name for name in names - {table.name for table in TABLES})


def _check_tables(warehouse: Warehouse, names: set[str]) -> None:
    missing = []
    for table in TABLES:
        with warehouse.read() as tx:  # one for each table, as a table that is missing may make it unusable
            if table.name in names and not warehouse.table_exists(tx, table):
                missing.append(warehouse.prefix + table.name)
    if missing:
        raise MissingTables(
            f"The views read tables that are not there yet: {', '.join(missing)}. EventFeedToSqlOperator and "
            "TransfersToSqlOperator create them when they first run."
        )
