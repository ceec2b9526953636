"""The analysts' views, of which include/sql/README.md describes the columns, and how each database writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined

from outbound_transfer.store.errors import MissingTables, UnsupportedDatabase
from outbound_transfer.store.naming import DEFAULT_PREFIX
from outbound_transfer.store.schema import Tables
from outbound_transfer.store.tables import TABLES

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
    :raises UnsupportedDatabase: there are no views for this database.
    """
    if database not in _FUNCTIONS:
        raise UnsupportedDatabase(f"There are no views for {database}, but for {', '.join(_FUNCTIONS)}.")
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701  # SQL
    functions = {name: text.format for name, text in _FUNCTIONS[database].items()}
    text = environment.from_string(_FILE.read_text()).render(functions)
    if (prefix, schema) == (DEFAULT_PREFIX, None):
        return text
    return _NAME.sub(_qualifier("`" if database == "mysql" else '"', prefix, schema), text)


def _qualifier(mark: str, prefix: str, schema: str | None) -> Callable[[re.Match[str]], str]:
    """Return a function that returns the quoted name of a table or view.

    :param mark: begins and ends a quoted name.
    """

    def qualified(found: re.Match[str]) -> str:
        names = [part.replace(mark, 2 * mark) for part in (schema, prefix + found[1]) if part]
        return ".".join(f"{mark}{name}{mark}" for name in names)

    return qualified


def create_views(tables: Tables) -> list[str]:
    """Create the views, or replace them; return their names.

    :raises MissingTables: a table that they read was not created yet. Nothing is changed.
    """
    text = render_views(tables.database.name, prefix=tables.prefix, schema=tables.schema)
    names = set(_NAME.findall(_FILE.read_text()))
    read = [table for table in TABLES if table.name in names]
    if missing := [tables.prefix + table.name for table in read if not tables.exist([table])]:
        raise MissingTables(
            f"The views read tables that are not there yet: {', '.join(missing)}. EventFeedToSqlOperator and "
            "TransfersToSqlOperator create them when they first run."
        )
    with tables.database.begin() as tx:
        tx = tx.execution_options(no_parameters=True)  # a % is one
        for statement in re.sub(r"^--.*\n", "", text, flags=re.MULTILINE).split(";\n"):
            if statement.strip():
                tx.exec_driver_sql(statement)
    return sorted(tables.prefix + name for name in names - {table.name for table in read})
