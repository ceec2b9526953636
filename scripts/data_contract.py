"""Bring the data contract in include/odcs up to date: it is what the definitions of the tables say.

Open Data Contract Standard 3.1: one schema for each table of docs/tables.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml
from sqlalchemy import Column, Table
from tables_page import INTERNAL

from outbound_transfer import __version__
from outbound_transfer.warehouse import tables
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX

CONTRACT: Final = Path(__file__).resolve().parents[1] / "include/odcs/outbound_transfer.odcs.yaml"

#: The standard's types. JSON has no type of its own there: a column may hold an object, an array or a scalar.
_TYPES: Final[dict[Any, dict[str, Any]]] = {
    tables.INTEGER: {"logicalType": "integer"},
    tables.BOOLEAN: {"logicalType": "boolean"},
    tables.TIME: {"logicalType": "timestamp", "logicalTypeOptions": {"timezone": True, "defaultTimezone": "UTC"}},
    tables.JSON: {"logicalType": "string", "logicalTypeOptions": {"format": "json"}},
    tables.BYTES: {"logicalType": "string", "logicalTypeOptions": {"format": "binary"}},
}

_HEAD: Final = "# Written by scripts/data_contract.py from the definitions of the tables.\n"


def contract() -> str:
    """Return the text of the contract."""
    content = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": "airflow-provider-outbound-transfer",
        "name": "Outbound transfers",
        "version": __version__,
        "status": "active",
        "description": {
            "purpose": "Transfers, their recipients, and the account's events, for analysis.",
            "usage": f"Read only. Names have the operators' table_prefix, by default {DEFAULT_PREFIX}.",
            "limitations": "Types in a database differ: docs/tables.md.",
        },
        "schema": [_schema(table) for table in tables.TABLES if table.name not in INTERNAL],
    }
    # Through JSON: SQLAlchemy's names are no plain strings, and YAML would refer to what is repeated.
    return _HEAD + yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False, allow_unicode=True, width=120)


def _schema(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "physicalName": f"{DEFAULT_PREFIX}{table.name}",
        "physicalType": "table",
        "logicalType": "object",
        "description": table.comment,
        "properties": [column_property(column) for column in table.columns],
    }


def column_property(column: Column) -> dict[str, Any]:
    """Return a column as a property; one with personal data has the classification `personal`."""
    keys = [each.name for each in column.table.primary_key]
    key = {"primaryKey": True, "primaryKeyPosition": keys.index(column.name) + 1} if column.primary_key else {}
    classification = {"classification": "personal"} if column.info.get("personal") else {}
    return {
        "name": column.name,
        **_TYPES.get(column.type, {"logicalType": "string"}),
        **key,
        "required": not column.nullable,
        **classification,
        "description": column.comment,
    }


if __name__ == "__main__":
    CONTRACT.parent.mkdir(exist_ok=True)
    CONTRACT.write_text(contract())
