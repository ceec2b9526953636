"""The commands about personal data: show what is stored of a person, erase it, and delete what is old."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator

from outbound_transfer.cli.commands import KINDS, confirm, open_feed_warehouse, print_rows, with_connections
from outbound_transfer.lake.catalog import open_catalog
from outbound_transfer.ledger.config import read_config
from outbound_transfer.protocol.addresses import is_plain_address, normalize_address
from outbound_transfer.protocol.wording import pluralize
from outbound_transfer.warehouse.config import MemoryPlace, find_memory_place
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.personal_rows import SqlPersonalData
from outbound_transfer.warehouse.privacy import PersonalData
from outbound_transfer.warehouse.timestamps import utc_now


@with_connections
def export(arguments: Namespace) -> None:
    """Print all rows that have an address, as JSON."""
    address = _address(arguments)
    found = [{"location": each.location, "tables": each.find(address)} for each in _locations(arguments)]
    print(json.dumps(found, default=str, ensure_ascii=False, indent=2))  # noqa: T201


@with_connections
def erase(arguments: Namespace) -> None:
    """Erase an address, and the names beside it."""
    address, locations = _address(arguments), list(_locations(arguments))
    if arguments.dry_run:
        found = [
            (each.location, {table: len(rows) for table, rows in each.find(address).items()}) for each in locations
        ]
        return _print_counts(arguments, found, "would be changed")
    where = ", ".join(each.location for each in locations)
    confirm(arguments, f"Erase {address} in {where}? It cannot be undone; tables are locked while they are rewritten.")
    return _print_counts(arguments, [(each.location, each.erase(address)) for each in locations], "changed")


@with_connections
def retention(arguments: Namespace) -> None:
    """Delete events, polls and deliveries that are older than some days."""
    locations, oldest = list(_locations(arguments)), utc_now() - arguments.older_than
    if not arguments.dry_run:
        where = ", ".join(each.location for each in locations)
        confirm(arguments, f"Delete rows older than {pluralize(arguments.older_than.days, 'day')} in {where}?")
    counts = [(each.location, each.delete_before(oldest, is_rehearsal=arguments.dry_run)) for each in locations]
    _print_counts(arguments, counts, "would be deleted or erased" if arguments.dry_run else "deleted or erased")


def _address(arguments: Namespace) -> str:
    if not is_plain_address(arguments.email):
        raise SystemExit("--email must be one address, such as ann@example.com.")
    return normalize_address(arguments.email)


def _print_counts(arguments: Namespace, counts: list[tuple[str, dict[str, int]]], done: str) -> None:
    found = [(location, table, count) for location, tables in counts for table, count in tables.items()]
    text = "\n".join(f"{pluralize(count, 'row')} of {table} in {location} {done}." for location, table, count in found)
    rows = [dict(zip(("location", "table", "rows"), each, strict=True)) for each in found]
    print_rows(arguments, text or f"Nothing {done}.", *rows)


def _locations(arguments: Namespace) -> Iterator[PersonalData]:
    """Yield the locations that the command names, the ledger, and what triggerers share, each once."""
    warehouses: dict[tuple[object, ...], SqlPersonalData] = {}

    def add(name: str, warehouse: Warehouse) -> None:
        warehouses.setdefault((name, warehouse.prefix, warehouse.schema), SqlPersonalData(warehouse, name))

    if arguments.sql_conn_id:
        add(f"connection '{arguments.sql_conn_id}'", open_feed_warehouse(arguments))
    ledger = read_config()
    for place in (ledger and MemoryPlace(ledger.conn_id, ledger.file), find_memory_place()):
        if place:
            add(str(place), place.open().warehouse)
    if not warehouses and not any(getattr(arguments, name) for name in KINDS):
        raise SystemExit("Where? There is no ledger: give --sql-conn-id, --iceberg-conn-id or --path.")
    yield from warehouses.values()
    # Not at the top: pyarrow and pyiceberg are optional.
    if arguments.path:
        from outbound_transfer.lake.object_personal import ObjectPersonalData
        from outbound_transfer.lake.object_store import open_store

        yield ObjectPersonalData(open_store(arguments.path))
    if arguments.iceberg_conn_id:
        if not arguments.table:
            raise SystemExit("--iceberg-conn-id needs --table, the namespace and table of Iceberg.")
        from outbound_transfer.lake.iceberg_personal import IcebergPersonalData

        yield IcebergPersonalData(open_catalog(arguments.iceberg_conn_id), arguments.table)
