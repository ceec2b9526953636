"""Bring the descriptions in include/dbt up to date: those of sources and staging columns are the tables' comments."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Table

from outbound_transfer.store import tables

STAGING: Final = Path(__file__).resolve().parents[1] / "include/dbt/models/staging"
BLOCKS: Final = STAGING / "_columns.md"
SOURCES: Final = STAGING / "_sources.yml"

#: The tables that the dbt package reads.
READ: Final = (
    tables.EVENTS,
    tables.FEED_CURSOR,
    tables.REJECTED_LINES,
    tables.FEED_POLLS,
    tables.TRANSFERS,
    tables.RECIPIENTS,
)

_IS_ENABLED: Final = {
    tables.EVENTS: "true",
    tables.TRANSFERS: "var('using_transfers', true)",
    tables.RECIPIENTS: "var('using_transfers', true)",
}
_IS_ENABLED_BY_DEFAULT: Final = "not var('outbound_transfer_lake', false)"

#: Column of the newest timestamp by table, with limits of its age: variable, default and unit. An account may have no
#: events for long.
_FRESHNESS: Final = {
    tables.EVENTS: ("loaded_at", {"warn_after": ("outbound_transfer_events_warn_after", 24, "hour")}),
    tables.FEED_POLLS: (
        "polled_at",
        {
            "warn_after": ("outbound_transfer_polls_warn_after", 15, "minute"),
            "error_after": ("outbound_transfer_polls_error_after", 60, "minute"),
        },
    ),
}

_HEAD: Final = """\
# Written by scripts/dbt_columns.py from the definitions of the tables.
version: 2

sources:
  - name: outbound_transfer
    description: The tables that EventFeedToSqlOperator and TransfersToSqlOperator write.
    database: "{{ var('outbound_transfer_database', target.database) }}"
    schema: "{{ var('outbound_transfer_schema', target.schema) }}"
    quoting:
      identifier: "{{ (target.type != 'snowflake' or var('outbound_transfer_quote_names', false)) | as_bool }}"
    tables:
"""


def blocks() -> str:
    """Return the doc block of each table and column."""
    named = [(f"outbound_transfer__{table.name}", table.comment) for table in READ]
    named += [(_block(table, column.name), column.comment) for table in READ for column in table.columns]
    head = "Written by scripts/dbt_columns.py from the definitions of the tables.\n"
    return head + "".join(f"\n{{% docs {name} %}}\n{text}\n{{% enddocs %}}\n" for name, text in named)


def sources() -> str:
    """Return the definition of the sources."""
    return _HEAD + "\n".join(map(_source, READ))


def _source(table: Table) -> str:
    columns = [line for column in table.columns for line in _column(table, column.name)]
    lines = [
        f"      - name: {table.name}",
        f"        identifier: \"{{{{ var('outbound_transfer_table_prefix', 'outbound_transfer_') }}}}{table.name}\"",
        f"        description: '{{{{ doc(\"outbound_transfer__{table.name}\") }}}}'",
        "        config:",
        f'          enabled: "{{{{ ({_IS_ENABLED.get(table, _IS_ENABLED_BY_DEFAULT)}) | as_bool }}}}"',
        *_freshness(table),
        "        columns:",
        *columns,
    ]
    return "\n".join(lines) + "\n"


def _freshness(table: Table) -> list[str]:
    if table not in _FRESHNESS:
        return []
    column, limits = _FRESHNESS[table]
    name = f"""('\\"{column}\\"' if var('outbound_transfer_quote_names', false) else '{column}')"""
    type_ = "('timestamptz' if target.type in ('postgres', 'duckdb') else 'timestamp')"
    return [
        "          # The column is text in some databases.",
        f"""          loaded_at_field: "{{{{ 'cast(' ~ {name} ~ ' as ' ~ {type_} ~ ')' }}}}\"""",
        "          freshness:",
        *(f"            {name}: {_limit(*limit)}" for name, limit in limits.items()),
    ]


def _limit(variable: str, default: int, unit: str) -> str:
    return f"{{count: \"{{{{ var('{variable}', {default}) | as_number }}}}\", period: {unit}}}"


def _column(table: Table, name: str) -> list[str]:
    lines = [f"          - name: {name}", f"            description: '{{{{ doc(\"{_block(table, name)}\") }}}}'"]
    is_personal = table.columns[name].info.get("personal")
    return [*lines, "            config: {meta: {personal: true}}"] if is_personal else lines


def _block(table: Table, column: str) -> str:
    return f"outbound_transfer__{table.name}__{column}"


if __name__ == "__main__":
    BLOCKS.write_text(blocks())
    SOURCES.write_text(sources())
