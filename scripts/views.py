"""Write the analysts' views of the package from the marts of include/dbt, for databases whose users need no dbt.

The macros of the dbt package are the same here; `dbt` and `adapter` are replaced by what the macros use of them. The
tables are read as they are, without the staging models: keys are enforced in these databases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

INCLUDE: Final = Path(__file__).resolve().parents[1] / "include"
PACKAGE: Final = INCLUDE / "dbt"
FOLDER: Final = INCLUDE.parent / "plugins/outbound_transfer/warehouse/views"
PREFIX: Final = "outbound_transfer_"
STAGING: Final = "stg_outbound_transfer__"

#: View by mart, in the order of the files.
VIEWS: Final = {
    "outbound_transfer__funnel_by_day": "outbound_transfer_funnel_by_day",
    "outbound_transfer__time_to_pickup": "outbound_transfer_time_to_pickup",
    "outbound_transfer__expiring_transfers": "outbound_transfer_expiring_transfers",
    "outbound_transfer__events_by_day": "outbound_transfer_events_by_day",
    "outbound_transfer__feed_health": "outbound_transfer_feed_lag",
}


@dataclass(frozen=True)
class Database:
    """One database: its title, the name that dbt has for it, and what dbt's own macros return."""

    title: str
    adapter: str
    dbt: dict[str, str]


DATABASES: Final = {
    "postgresql": Database(
        "PostgreSQL", "postgres", {"type_int": "integer", "type_bigint": "bigint", "current_timestamp": "now()"}
    ),
    "duckdb": Database(
        "DuckDB", "duckdb", {"type_int": "integer", "type_bigint": "bigint", "current_timestamp": "now()"}
    ),
    "mysql": Database("MySQL and MariaDB", "mysql", {"type_int": "signed", "type_bigint": "signed"}),
    "sqlite": Database("SQLite", "sqlite", {"type_int": "integer", "type_bigint": "bigint"}),
}


def file_of(name: str) -> str:
    """Return the text of the file with the views of a database."""
    database = DATABASES[name]
    environment = _environment(database)
    head = f"-- Views for analysts, {database.title}. include/sql/README.md says what each column means.\n"
    head += "-- Written by scripts/views.py from the dbt models of include/dbt/models/marts.\n"
    return head + "".join(
        f"\nDROP VIEW IF EXISTS {view};\nCREATE VIEW {view} AS\n{_query(environment, mart)};\n"
        for mart, view in VIEWS.items()
    )


def _query(environment: Environment, mart: str) -> str:
    return environment.from_string((PACKAGE / f"models/marts/{mart}.sql").read_text()).render().strip()


def _environment(database: Database) -> Environment:
    """Return an environment with the package's macros, and with those names of dbt's that the marts use."""
    environment = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701  # SQL, not HTML
    macros = SimpleNamespace()
    environment.globals.update(
        {
            "outbound_transfer": macros,
            "adapter": SimpleNamespace(dispatch=_dispatch(macros, database.adapter)),
            "dbt": SimpleNamespace(**{name: _constant(text) for name, text in database.dbt.items()}),
            "config": _constant(""),
            "ref": _table,
            "return": lambda value: value,
            "var": lambda _name, default: default,
        }
    )
    for file in sorted((PACKAGE / "macros").glob("*.sql")):
        source = file.read_text()
        module = environment.from_string(source).module
        macros.__dict__.update({name: getattr(module, name) for name in re.findall(r"{% macro (\w+)", source)})
    return environment


def _dispatch(macros: SimpleNamespace, adapter: str) -> Callable[[str, str], Any]:
    def dispatch(name: str, _package: str) -> Any:
        return getattr(macros, f"{adapter}__{name}", None) or getattr(macros, f"default__{name}")

    return dispatch


def _constant(text: str) -> Callable[..., str]:
    return lambda **_: text


def _table(model: str) -> str:
    return PREFIX + model.removeprefix(STAGING)


if __name__ == "__main__":
    for name in DATABASES:
        (FOLDER / f"{name}.sql").write_text(file_of(name))
