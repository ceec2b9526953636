"""The commands about personal data: show what is stored of a person, erase it, and delete what is old."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from outbound_transfer.cli.commands import confirm, open_feed_tables, print_rows, with_connections
from outbound_transfer.client.addresses import is_plain_address
from outbound_transfer.client.wording import pluralize
from outbound_transfer.delivery.personal_data import DeliveriesPersonalData
from outbound_transfer.delivery.place import find_deliveries
from outbound_transfer.store.config import table_naming
from outbound_transfer.store.connection import open_tables
from outbound_transfer.store.personal_data import AddressSearch
from outbound_transfer.store.persons import PersonalData, SqlPersonalData
from outbound_transfer.store.values import utc_now


@with_connections
def export(arguments: Namespace) -> None:
    """Print all rows that have an address as JSON, without the addresses of others."""
    search = _search(arguments)
    found = [{"location": each.location, "tables": each.find(search)} for each in _locations(arguments)]
    print(search.hide_others(json.dumps(found, default=_to_text, ensure_ascii=False, indent=2)))  # noqa: T201


@with_connections
def erase(arguments: Namespace) -> None:
    """Erase an address, with names and payloads; exit with 1 if a delivery that can still be sent has it."""
    search, locations = _search(arguments), list(_locations(arguments))
    if arguments.dry_run:
        counts = [{table: len(rows) for table, rows in each.find(search).items()} for each in locations]
    else:
        confirm(arguments, f"Erase {arguments.email} in {_names(locations)}? It cannot be undone.")
        counts = [each.erase(search) for each in locations]
    _print_counts(arguments, locations, counts, "erased")
    left = [each for place in locations if isinstance(place, DeliveriesPersonalData) for each in place.unfinished]
    if left:
        raise SystemExit(
            f"Not erased, as they may still be sent: transfers {', '.join(left)}. Run this again once their tasks have "
            "ended."
        )


@with_connections
def retention(arguments: Namespace) -> None:
    """Delete events and polls that are older than some days."""
    if not arguments.sql_conn_id:
        raise SystemExit("Where? Give --sql-conn-id.")
    locations = [SqlPersonalData(open_feed_tables(arguments), f"connection '{arguments.sql_conn_id}'")]
    days = pluralize(arguments.older_than.days, "day")
    if not arguments.dry_run:
        confirm(arguments, f"Delete what is older than {days} in {_names(locations)}?")
    oldest = utc_now() - arguments.older_than
    counts = [each.delete_before(oldest, dry_run=arguments.dry_run) for each in locations]
    _print_counts(arguments, locations, counts, "deleted")


def _search(arguments: Namespace) -> AddressSearch:
    if not is_plain_address(arguments.email):
        raise SystemExit("--email must be one address, such as ann@example.com.")
    return AddressSearch(arguments.email.strip())


def _to_text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _names(locations: Sequence[PersonalData]) -> str:
    return ", ".join(each.location for each in locations)


def _print_counts(
    arguments: Namespace, locations: Sequence[PersonalData], counts: Sequence[dict[str, int]], done: str
) -> None:
    done = f"would be {done}" if arguments.dry_run else done
    rows: list[dict[str, Any]] = [
        {"location": each.location, "table": table, "rows": count}
        for each, tables in zip(locations, counts, strict=True)
        for table, count in tables.items()
    ]
    text = "\n".join(f"{pluralize(row['rows'], 'row')} of {row['table']} in {row['location']} {done}." for row in rows)
    print_rows(arguments, text or f"Nothing {done}.", *rows)


def _locations(arguments: Namespace) -> Iterator[PersonalData]:
    """Yield the table of deliveries, and the locations that the command names."""
    place = find_deliveries()
    if place is None and not arguments.sql_conn_id:
        raise SystemExit("Where? There is no table of deliveries, so give --sql-conn-id.")
    tables: dict[tuple[str, str, str | None], None] = {}
    if arguments.sql_conn_id:
        tables[arguments.sql_conn_id, arguments.table_prefix, arguments.schema] = None
    if place:
        yield DeliveriesPersonalData(place.open(patience=0.0))
        if place.conn_id:  # whose database may have the feed's tables, too
            names = table_naming()
            tables[place.conn_id, names["prefix"], names["schema"]] = None
    for conn_id, prefix, schema in tables:
        yield SqlPersonalData(open_tables(conn_id, prefix=prefix, schema=schema), f"connection '{conn_id}'")
