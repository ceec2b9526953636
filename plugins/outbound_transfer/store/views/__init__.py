"""The analysts' views, of which include/sql/README.md describes the columns, and how each database writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined

from outbound_transfer.store.config import DEFAULT_PREFIX
from outbound_transfer.store.errors import MissingTables, UnsupportedDatabase
from outbound_transfer.store.tables import TABLES, Tables

_FILE: Final = Path(__file__).with_name("views.sql")
_NAME: Final = re.compile(rf"\b{DEFAULT_PREFIX}(\w+)")

#: What the file calls, as the macros of include/dbt, where dbt knows the database. Views keep their grants, and the
#: views that read them.
_COMMON: Final = {
    "replace_view": "CREATE OR REPLACE VIEW {}",
    "utc_date": "CAST({} AT TIME ZONE 'UTC' AS date)",
    "utc_now": "now()",
    "integer": "integer",
    "bigint": "bigint",
}
_FUNCTIONS: Final = {
    "duckdb": {"seconds_between": "epoch({1} - {0})"},
    "mysql": {
        "utc_date": "CAST({} AS date)",
        "seconds_between": "timestampdiff(MICROSECOND, {}, {}) / 1000000.0",
        "utc_now": "utc_timestamp(6)",
        "integer": "signed",
        "bigint": "signed",
    },
    "postgresql": {"seconds_between": "CAST(EXTRACT(EPOCH FROM {1} - {0}) AS double precision)"},
    "sqlite": {
        "replace_view": "DROP VIEW IF EXISTS {0};\nCREATE VIEW {0}",
        "utc_date": "date({})",
        "seconds_between": "ROUND((julianday({1}) - julianday({0})) * 86400.0, 3)",
        "utc_now": "'now'",
    },
}


def render_views(database: str, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> str:
    """Return the statements that replace the views, for the name of a dialect.

    :param schema: of tables and views; without one, names are not qualified.
    :raises UnsupportedDatabase: there are no views for this database.
    """
    if database not in _FUNCTIONS:
        raise UnsupportedDatabase(f"There are no views for {database}, but for {', '.join(_FUNCTIONS)}.")
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701  # SQL
    functions = {name: text.format for name, text in (_COMMON | _FUNCTIONS[database]).items()}
    text = environment.from_string(_FILE.read_text()).render(functions)
    if (prefix, schema) == (DEFAULT_PREFIX, None):
        return text
    mark = "`" if database == "mysql" else '"'

    def qualified(found: re.Match[str]) -> str:
        names = [part.replace(mark, 2 * mark) for part in (schema, prefix + found[1]) if part]
        return ".".join(f"{mark}{name}{mark}" for name in names)

    return _NAME.sub(qualified, text)


def create_views(tables: Tables) -> list[str]:
    """Create or replace the views; return their names. ``MissingTables``: nothing is changed."""
    text = render_views(tables.database.name, prefix=tables.prefix, schema=tables.schema)
    names = set(_NAME.findall(_FILE.read_text()))
    read = [table for table in TABLES if table.name in names]
    if missing := [tables.prefix + table.name for table in read if not tables.exist([table])]:
        raise MissingTables(
            f"The views read tables that do not exist yet: {', '.join(missing)}. EventFeedToSqlOperator and "
            "TransfersToSqlOperator create them when they first run."
        )
    with tables.database.begin() as tx:
        tx = tx.execution_options(no_parameters=True)  # a % is one
        for statement in re.sub(r"^--.*\n", "", text, flags=re.MULTILINE).split(";\n"):
            if statement.strip():
                tx.exec_driver_sql(statement)
    return sorted(tables.prefix + name for name in names - {table.name for table in read})
