"""Bring docs/tables.md up to date: everything below its introduction comes from the table definitions."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Table

from outbound_transfer.store import tables
from outbound_transfer.store.config import DEFAULT_PREFIX
from outbound_transfer.store.types import FLAG, WHOLE, Time

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGE: Final = DOCS / "tables.md"
#: Tables that the provider keeps for itself: the page has no columns of them.
INTERNAL: Final = (
    "transfer_sync",
    "accounts",
    "deliveries",
)
#: Of the table that :mod:`outbound_transfer.waiting.reader` creates.
PAGES: Final = (
    "Listing pages that one triggerer has read, for the others: ids, statuses and times. Each is deleted after a day."
)
TYPES: Final = {
    tables.TIME: "timestamp",
    tables.JSON: "JSON",
    tables.BYTES: "bytes",
    WHOLE: "integer",
    FLAG: "boolean",
    Time: "timestamp",
}


def updated(page: str) -> str:
    """Return ``page`` with a section for each table, in place of the sections that it has."""
    introduction = page.partition("\n## ")[0].rstrip()
    shown = [table for table in tables.TABLES if table.name not in INTERNAL]
    return "\n\n".join([introduction, *map(_section, shown), _internal()]) + "\n"


def _section(table: Table) -> str:
    heading = f"## `{DEFAULT_PREFIX}{table.name}`"
    rows = ["| column | type | description |", "|---|---|---|", *map(_row, table.columns)]
    comment = textwrap.fill(_linked(table.comment or ""), 120, break_long_words=False, break_on_hyphens=False)
    return f"{heading}\n\n{comment}\n\n" + "\n".join(rows)


def _internal() -> str:
    rows = (
        f"| `{DEFAULT_PREFIX}{table.name}` | {_linked(table.comment or '')} |"
        for table in (*tables.TABLES, tables.DELIVERIES)
        if table.name in INTERNAL
    )
    others = [f"| `{DEFAULT_PREFIX}pages` | {PAGES} |"]
    heading = "## Tables for the provider itself\n\nTheir columns are described in the database's catalog.\n"
    return "\n".join([heading, "| table | content |", "|---|---|", *rows, *others])


def _row(column: Column) -> str:
    remark = ", key" if column.primary_key else ", nullable" if column.nullable else ""
    type_ = next((name for kind, name in TYPES.items() if kind in (column.type, type(column.type))), "text")
    return f"| `{column.name}` | {type_}{remark} | {column.comment} |"


def _linked(comment: str) -> str:
    """Return a comment with a link in the place of a citation, such as ``service-api.md, R46``."""
    headings = re.findall(r"^#+ (R(\d+)\b.*)$", (DOCS / "service-api.md").read_text(), re.MULTILINE)
    anchors = {f"R{number}": re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text, number in headings}
    return re.sub(
        r"service-api\.md, (R\d+)", lambda found: f"[{found[1]}](service-api.md#{anchors[found[1]]})", comment
    )


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
