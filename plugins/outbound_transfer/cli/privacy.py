"""The commands about personal data: show what is stored of a person, erase it, and delete what is old."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outbound_transfer.cli.commands import confirm, open_feed_tables, print_rows, with_connections
from outbound_transfer.delivery.personal_data import DeliveriesPersonalData
from outbound_transfer.delivery.place import find_deliveries
from outbound_transfer.store.config import table_naming
from outbound_transfer.store.connection import open_tables
from outbound_transfer.store.personal_data import AddressSearch
from outbound_transfer.store.persons import PersonalData, SqlPersonalData
from outbound_transfer.store.values import utc_now
from outbound_transfer.wording import pluralize


@with_connections
def export(arguments: Namespace) -> None:
    """Print all rows that have an address as JSON, without the addresses of others."""
    search = _search(arguments)
    found = [{"location": each.location, "tables": each.find(search)} for each in _locations(arguments)]
    print(search.hide_others(json.dumps(found, default=_to_text, ensure_ascii=False, indent=2)))  # noqa: T201


@with_connections
def erase(arguments: Namespace) -> None:
    """Erase an address, with names and payloads; exit with 1 if a delivery that can still be sent has it."""
    search, places = _search(arguments), list(_locations(arguments))
    if not arguments.dry_run:
        names = ", ".join(each.location for each in places)
        confirm(arguments, f"Erase {arguments.email} in {names}? It cannot be undone.")
    counts = [each.count(search) if arguments.dry_run else each.erase(search) for each in places]
    _print_counts(arguments, places, counts, "erased")
    if left := [transfer_id for each in places for transfer_id in each.unfinished]:
        raise SystemExit(
            f"Not erased, as they may still be sent: transfers {', '.join(left)}. Run this again once their tasks have "
            "ended."
        )


@with_connections
def retention(arguments: Namespace) -> None:
    """Delete events and polls that are older than some days."""
    if not arguments.sql_conn_id:
        raise SystemExit("Where? Give --sql-conn-id.")
    place = SqlPersonalData(open_feed_tables(arguments), f"connection '{arguments.sql_conn_id}'")
    if not arguments.dry_run:
        days = pluralize(arguments.older_than.days, "day")
        confirm(arguments, f"Delete what is older than {days} in {place.location}?")
    counts = place.delete_before(utc_now() - arguments.older_than, dry_run=arguments.dry_run)
    _print_counts(arguments, [place], [counts], "deleted")


def _search(arguments: Namespace) -> AddressSearch:
    # Nothing but an address. U+FFFD stands for a character that could not be read.
    if not re.fullmatch(r"[^\s@<>,;\ufffd]+@[^\s@<>,;\ufffd]+", arguments.email.strip()):
        raise SystemExit("--email must be one address, such as ann@example.com.")
    return AddressSearch(arguments.email.strip())


def _to_text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _print_counts(
    arguments: Namespace, places: Sequence[PersonalData], counts: Sequence[Mapping[str, int]], done: str
) -> None:
    """Print the number of rows by table of each place."""
    done = f"would be {done}" if arguments.dry_run else done
    rows: list[dict[str, Any]] = [
        {"location": each.location, "table": table, "rows": number}
        for each, numbers in zip(places, counts, strict=True)
        for table, number in numbers.items()
    ]
    text = "\n".join(f"{pluralize(row['rows'], 'row')} of {row['table']} in {row['location']} {done}." for row in rows)
    print_rows(arguments, text or f"Nothing {done}.", *rows)


def _locations(arguments: Namespace) -> Iterator[PersonalData]:
    """Yield the table of deliveries, and the locations that the command names."""
    place = find_deliveries()
    if place is None and not arguments.sql_conn_id:
        raise SystemExit("Where? There is no table of deliveries, so give --sql-conn-id.")
    named = [(arguments.sql_conn_id, arguments.table_prefix, arguments.schema)] if arguments.sql_conn_id else []
    if place:
        yield DeliveriesPersonalData(place.open(patience=0.0))
        if place.conn_id:  # whose database may have the feed's tables, too
            names = table_naming()
            named.append((place.conn_id, names["prefix"], names["schema"]))
    for conn_id, prefix, schema in dict.fromkeys(named):
        yield SqlPersonalData(open_tables(conn_id, prefix=prefix, schema=schema), f"connection '{conn_id}'")
