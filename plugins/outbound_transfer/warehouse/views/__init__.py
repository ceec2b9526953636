"""The analysts' views, of which include/sql/README.md describes the columns, and how each database writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined

from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.dialects import DIALECTS
from outbound_transfer.warehouse.errors import MissingTables, UnsupportedWarehouse
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX
from outbound_transfer.warehouse.tables import TABLES

_FILE: Final = Path(__file__).with_name("views.sql")
_NAME: Final = re.compile(rf"\b{DEFAULT_PREFIX}(\w+)")

_UTC_DATE: Final = "CAST({} AT TIME ZONE 'UTC' AS date)"

#: It keeps the grants of a view, and the views that read it.
_REPLACE: Final = "CREATE OR REPLACE VIEW {}"

#: What the file calls, by database; as the macros of include/dbt, where dbt knows the database.
_FUNCTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "duckdb": {
        "replace_view": _REPLACE,
        "utc_date": _UTC_DATE,
        "seconds_between": "epoch({1} - {0})",
        "utc_now": "now()",
        "integer": "integer",
        "bigint": "bigint",
    },
    "mysql": {
        "replace_view": _REPLACE,
        "utc_date": "CAST({} AS date)",
        "seconds_between": "timestampdiff(MICROSECOND, {}, {}) / 1000000.0",
        "utc_now": "utc_timestamp(6)",
        "integer": "signed",
        "bigint": "signed",
    },
    "postgresql": {
        "replace_view": _REPLACE,
        "utc_date": _UTC_DATE,
        "seconds_between": "CAST(EXTRACT(EPOCH FROM {1} - {0}) AS double precision)",
        "utc_now": "now()",
        "integer": "integer",
        "bigint": "bigint",
    },
    "sqlite": {
        "replace_view": "DROP VIEW IF EXISTS {0};\nCREATE VIEW {0}",
        "utc_date": "date({})",
        "seconds_between": "ROUND((julianday({1}) - julianday({0})) * 86400.0, 3)",
        "utc_now": "'now'",
        "integer": "integer",
        "bigint": "bigint",
    },
}


def render_views(database: str, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> str:
    """Return the statements that replace the views.

    :param database: the name of its dialect.
    :param prefix: prefix of the names of tables and views.
    :param schema: their schema; without one, names are not qualified.
    :raises UnsupportedWarehouse: there are no views for this database.
    """
    if database not in _FUNCTIONS:
        raise UnsupportedWarehouse(f"There are no views for {database}, but for {', '.join(_FUNCTIONS)}.")
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701  # SQL
    functions = {name: text.format for name, text in _FUNCTIONS[database].items()}
    text = environment.from_string(_FILE.read_text()).render(functions)
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
    names = set(_NAME.findall(_FILE.read_text()))
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
