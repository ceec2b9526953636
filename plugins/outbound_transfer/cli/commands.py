"""The commands of :mod:`.console`: repair the feed's tables, forget deliveries, show and erase personal data."""

from __future__ import annotations

import getpass
import json
import os
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any, Final

import msgspec
from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.airflow_compat.run_state import read_state
from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.delivery import forget as forgetting
from outbound_transfer.delivery.personal_data import personal_data_of_deliveries
from outbound_transfer.delivery.place import find_deliveries, require_deliveries
from outbound_transfer.lake.catalog import open_catalog
from outbound_transfer.store import shown_deliveries
from outbound_transfer.store.config import table_naming
from outbound_transfer.store.destination import EventDestination
from outbound_transfer.store.errors import InvalidCursor, words_of
from outbound_transfer.store.events import EventStore, read_cursors
from outbound_transfer.store.personal_data import AddressSearch, PersonalData, delete_before, personal_data_of
from outbound_transfer.store.rows import utc_now
from outbound_transfer.store.tables import Tables, open_tables
from outbound_transfer.store.views import create_views, render_views
from outbound_transfer.wording import pluralize

#: Tells Airflow whether a process may read connections from its database.
_PROCESS_CONTEXT: Final = "_AIRFLOW_PROCESS_CONTEXT"

#: The service deletes drafts after 30 days, so an older row can no longer lead to a send.
MIN_AGE: Final = timedelta(days=30)

NO_FEED: Final = "No feed has been read here yet. Run an ingestion first."


def with_connections(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Let a command use the connections in Airflow's database too, and exit with the text of an error.

    Errors of Python itself, which are mistakes in the code, pass. Nothing is logged, as that goes to standard output.
    """

    @wraps(function)
    def run(arguments: Namespace) -> None:
        before = os.environ.get(_PROCESS_CONTEXT, "")
        os.environ[_PROCESS_CONTEXT] = "server"
        arguments.verbose = False  # else Airflow would log
        try:
            suppress_logs_and_warning(function)(arguments)
        except OutboundTransferError as error:
            raise SystemExit(str(error)) from error
        except Exception as error:  # each driver, store and catalog has its own
            if type(error).__module__ == "builtins" and not isinstance(error, OSError):
                raise
            given = {kind: getattr(arguments, f"{kind}_conn_id", None) for kind in ("iceberg", "sql")}
            place = "".join(f"--{kind}-conn-id {conn_id}: " for kind, conn_id in given.items() if conn_id)
            # The other lines of a database error may quote the row.
            raise SystemExit(f"{place}{redact(words_of(error))}") from None
        finally:
            os.environ[_PROCESS_CONTEXT] = before

    return run


@with_connections
def status(arguments: Namespace) -> None:
    """Print the cursor, the counts and the last poll of a feed."""
    details = msgspec.to_builtins(open_feed(arguments).status())
    lines = [{"property": name, "value": "-" if value is None else value} for name, value in details.items()]
    rows = lines if arguments.output in ("table", "plain") else [details]
    AirflowConsole().print_as(rows, output=arguments.output)


@with_connections
def verify(arguments: Namespace) -> None:
    """Print the problems of a feed's tables, and exit with 1 if there are any."""
    feed = open_feed(arguments)
    problems = list(feed.find_problems())
    heading = "Problems of" if problems else "OK: no problems found in"
    text = "\n".join([f"{heading} the feed of {_account_text(feed)}", *problems])
    print_rows(arguments, text, *({"problem": each} for each in problems))
    if problems:
        raise SystemExit(1)


@with_connections
def rebuild_cursor(arguments: Namespace) -> None:
    """Set the cursor to the page of the newest rows."""
    _move(arguments, "the newest rows' cursor", lambda feed, _: feed.rebuild_cursor())


@with_connections
def reset(arguments: Namespace) -> None:
    """Set the cursor."""
    after = _move(arguments, arguments.to, lambda feed, shown: feed.reset(arguments.to, expected=shown))
    if after != arguments.to and not arguments.output:
        print(f"The page with {arguments.to} starts at {after}: its rows are deleted and read again.")  # noqa: T201


def _move(
    arguments: Namespace, to: object, move: Callable[[EventDestination, int | None], tuple[int | None, int]]
) -> int:
    """Ask, set the cursor, and print it; return where it is. ``move`` is given the feed and the cursor asked about."""
    feed, shown = open_feed(arguments), None
    with suppress(InvalidCursor):  # which the command may repair
        shown = feed.read_cursor()
    from_text = "not valid" if shown is None else shown
    confirm(arguments, f"Set the cursor of {_account_text(feed)} from {from_text} to {to}?")
    before, after = move(feed, shown)
    text = f"The cursor was {'not valid' if before is None else before} and is {after}."
    print_rows(arguments, text, {"before": before, "after": after})
    return after


def _account_text(feed: EventDestination) -> str:
    address = feed.read_address()
    return feed.account if address in (None, feed.account) else f"{feed.account} ({address})"


@with_connections
def views(arguments: Namespace) -> None:
    """Print the SQL of the analysts' views, or create them."""
    if bool(arguments.dialect) == bool(arguments.sql_conn_id) or (arguments.apply and arguments.dialect):
        raise SystemExit("Give --dialect or --sql-conn-id to print the SQL, or --sql-conn-id --apply to run it.")
    if arguments.apply:
        created = create_views(open_feed_tables(arguments))
        print_rows(arguments, "\n".join(f"{name} created" for name in created), *({"view": name} for name in created))
        return
    dialect = arguments.dialect or open_feed_tables(arguments).database.name
    sql = render_views(dialect, prefix=arguments.table_prefix, schema=arguments.schema)
    print_rows(arguments, sql.strip(), {"sql": sql})


@with_connections
def forget(arguments: Namespace) -> None:
    """Forget a transfer, so that its task, once it is cleared, sends it again."""
    transfer_id = arguments.transfer_id
    confirm(arguments, f"Forget transfer {transfer_id}? If its task is cleared, it is sent and billed again.")
    task = forgetting.forget(require_deliveries().open(), transfer_id, read_state, getpass.getuser())
    text = f"Transfer {transfer_id} is forgotten. Clear the {task} to send it again."
    print_rows(arguments, text, {"transfer_id": transfer_id, "task": task})


@with_connections
def clean(arguments: Namespace) -> None:
    """Delete the rows of tasks whose deliveries have not changed for some time; delivery keys stay."""
    if arguments.older_than < MIN_AGE:
        raise SystemExit("--older-than must be 30d or more: the service keeps drafts, which may be sent, that long.")
    place, oldest = find_deliveries(), utc_now() - arguments.older_than
    if place is None or (place.file and not place.file.exists()):
        print_rows(arguments, "There is no deliveries table, so there is nothing to delete.", {"deleted": 0})
        return
    days = pluralize(arguments.older_than.days, "day")
    confirm(arguments, f"Delete deliveries older than {days}? A task that is cleared later sends again.")
    deleted = shown_deliveries.clean(place.open(patience=0.0), oldest)
    print_rows(arguments, f"{pluralize(deleted, 'row')} of {place} deleted.", {"deleted": deleted})


@with_connections
def export(arguments: Namespace) -> None:
    """Print all rows with an address as JSON, without other people's addresses."""

    def to_text(value: object) -> str:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    search = _search(arguments)
    found = [{"location": each.location, "tables": each.find(search)} for each in _places(arguments)]
    print(search.hide_others(json.dumps(found, default=to_text, ensure_ascii=False, indent=2)))  # noqa: T201


@with_connections
def erase(arguments: Namespace) -> None:
    """Erase an address, with names and payloads; exit with 1 if a delivery that can still be sent has it."""
    search, places = _search(arguments), _places(arguments)
    names = ", ".join(each.location for each in places)
    confirm(arguments, f"Erase {arguments.email} in {names}? It cannot be undone.")
    counts = [(each.location, each.count(search) if arguments.dry_run else each.erase(search)) for each in places]
    _print_counts(arguments, counts, "erased")
    if left := [transfer_id for each in places for transfer_id in each.unfinished]:
        ids, to_do = ", ".join(left), "Run this again once their tasks have ended."
        raise SystemExit(f"Not erased, as they may still be sent: transfers {ids}. {to_do}")


@with_connections
def retention(arguments: Namespace) -> None:
    """Delete events and polls that are older than some days."""
    if not arguments.sql_conn_id:
        raise SystemExit("Where? Give --sql-conn-id.")
    place, days = f"connection '{arguments.sql_conn_id}'", pluralize(arguments.older_than.days, "day")
    confirm(arguments, f"Delete what is older than {days} in {place}?")
    oldest = utc_now() - arguments.older_than
    counts = delete_before(open_feed_tables(arguments), oldest, dry_run=arguments.dry_run)
    _print_counts(arguments, [(place, counts)], "deleted")


def _search(arguments: Namespace) -> AddressSearch:
    # Nothing but an address. U+FFFD stands for a character that could not be read.
    if not re.fullmatch(r"[^\s@<>,;\ufffd]+@[^\s@<>,;\ufffd]+", arguments.email.strip()):
        raise SystemExit("--email must be one address, such as ann@example.com.")
    return AddressSearch(arguments.email.strip())


def _print_counts(arguments: Namespace, counts: Sequence[tuple[str, Mapping[str, int]]], done: str) -> None:
    done = f"would be {done}" if arguments.dry_run else done
    found = [(place, table, count) for place, tables in counts for table, count in tables.items()]
    text = "\n".join(f"{pluralize(count, 'row')} of {table} in {place} {done}." for place, table, count in found)
    rows = ({"location": place, "table": table, "rows": count} for place, table, count in found)
    print_rows(arguments, text or f"Nothing {done}.", *rows)


def _places(arguments: Namespace) -> list[PersonalData]:
    """Return the table of deliveries, and the tables in its database and in the one that the command names."""
    place = find_deliveries()
    if place is None and not arguments.sql_conn_id:
        raise SystemExit("Where? There is no deliveries table, so give --sql-conn-id.")
    named = (arguments.sql_conn_id, arguments.table_prefix, arguments.schema)
    of_deliveries = (place.conn_id if place else "", *table_naming().values())
    found = [personal_data_of_deliveries(place.open(patience=0.0))] if place else []
    return found + [
        personal_data_of(open_tables(conn_id, prefix=prefix, schema=schema), f"connection '{conn_id}'")
        for conn_id, prefix, schema in dict.fromkeys([named, of_deliveries])
        if conn_id
    ]


def print_rows(arguments: Namespace, text: str, *rows: dict[str, Any]) -> None:
    if arguments.output:
        AirflowConsole().print_as(rows, output=arguments.output)
    else:
        print(text)  # noqa: T201


def confirm(arguments: Namespace, question: str) -> None:
    try:
        is_agreed = arguments.yes or vars(arguments).get("dry_run")
        if is_agreed or input(f"{question} [y/N] ").strip().lower() in ("y", "yes"):
            return
    except EOFError:
        raise SystemExit("Nothing was changed: there is no terminal to ask. Give --yes to proceed.") from None
    except KeyboardInterrupt:
        pass
    raise SystemExit("Nothing was changed.")


def open_feed(arguments: Namespace) -> EventDestination:
    """Return the feed that a command is about, which may never have been read."""
    if bool(arguments.sql_conn_id) == bool(arguments.iceberg_conn_id):
        raise SystemExit("Where is the feed? Give exactly one of --sql-conn-id and --iceberg-conn-id.")
    if arguments.sql_conn_id:
        tables = open_feed_tables(arguments)
        return EventStore(tables, _account(arguments, lambda: list(read_cursors(tables))))
    if not arguments.table:
        raise SystemExit("--iceberg-conn-id needs --table, the Iceberg namespace and table.")
    catalog = open_catalog(arguments.iceberg_conn_id)
    # Not at the top: pyiceberg is optional.
    from outbound_transfer.lake.iceberg import IcebergEventDestination, list_feeds_of

    account = _account(arguments, lambda: list_feeds_of(catalog, arguments.table))
    return IcebergEventDestination(catalog, arguments.table, account)


def open_feed_tables(arguments: Namespace) -> Tables:
    return open_tables(arguments.sql_conn_id, prefix=arguments.table_prefix, schema=arguments.schema)


def _account(arguments: Namespace, list_accounts: Callable[[], list[str]]) -> str:
    feeds = [arguments.account] if arguments.account else list_accounts()
    if len(feeds) != 1:
        raise SystemExit(f"Give --account, one of: {', '.join(feeds)}" if feeds else NO_FEED)
    return feeds[0]
