"""The commands of :mod:`outbound_transfer.cli.definition`: repair the feed's tables, forget deliveries."""

from __future__ import annotations

import getpass
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from typing import Any, Final

import msgspec
from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning
from sqlalchemy.exc import DBAPIError

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.airflow_compat.run_state import read_state
from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.client.wording import pluralize
from outbound_transfer.delivery.forget import forget
from outbound_transfer.delivery.place import find_deliveries, require_deliveries
from outbound_transfer.lake.catalog import open_catalog
from outbound_transfer.store.connection import open_tables
from outbound_transfer.store.destination import FeedMaintenance
from outbound_transfer.store.errors import InvalidCursor, words_of
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.maintenance import SqlFeedMaintenance, list_feeds
from outbound_transfer.store.schema import Tables
from outbound_transfer.store.values import utc_now
from outbound_transfer.store.views import create_views, render_views

#: Tells Airflow whether a process may read connections from its database.
_PROCESS_CONTEXT: Final = "_AIRFLOW_PROCESS_CONTEXT"

#: The service deletes drafts after 30 days, so an older row can no longer lead to a send.
MIN_AGE: Final = timedelta(days=30)

NO_FEED: Final = "No feed has been read here yet. Run an ingestion first."


def with_connections(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Let a command use the connections in Airflow's database, and exit with the text of an error.

    Errors of Python itself, which are mistakes in the code, pass. Where an output format is given, nothing is logged:
    Airflow's log goes to standard output, too.
    """

    @wraps(function)
    def run(arguments: Namespace) -> None:
        try:
            with _server_context():
                if getattr(arguments, "output", None):
                    suppress_logs_and_warning(function)(Namespace(**{"verbose": False, **vars(arguments)}))
                else:
                    function(arguments)
        except OutboundTransferError as error:
            raise SystemExit(str(error)) from error
        except DBAPIError as error:  # its other lines may quote the row
            raise SystemExit(f"{_place_of(arguments)}{redact(words_of(error))}") from None
        except Exception as error:  # each driver, store and catalog has its own
            if type(error).__module__ == "builtins" and not isinstance(error, OSError):
                raise
            raise SystemExit(f"{_place_of(arguments)}{type(error).__name__}: {redact(str(error))}") from error

    return run


def _place_of(arguments: Namespace) -> str:
    """Return what the command reads, to name it in an error."""
    given = {name: getattr(arguments, name, None) for name in KINDS}
    return "".join(f"--{name.replace('_', '-')} {value}: " for name, value in given.items() if value)


@contextmanager
def _server_context() -> Iterator[None]:
    """Find connections in Airflow's database too, as ``airflow connections get`` does."""
    before = os.environ.get(_PROCESS_CONTEXT)
    os.environ[_PROCESS_CONTEXT] = "server"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PROCESS_CONTEXT]
        else:
            os.environ[_PROCESS_CONTEXT] = before


@with_connections
def status(arguments: Namespace) -> None:
    """Print the cursor, the counts and the last poll of a feed."""
    details = msgspec.to_builtins(open_feed(arguments).status())
    if arguments.output in ("table", "plain"):
        rows = [{"property": name, "value": "-" if value is None else value} for name, value in details.items()]
    else:
        rows = [details]
    AirflowConsole().print_as(rows, output=arguments.output)


@with_connections
def verify(arguments: Namespace) -> None:
    """Print the problems of a feed's tables, and exit with 1 if there are any."""
    feed = open_feed(arguments)
    problems = list(feed.find_problems())
    if arguments.output:
        print_rows(arguments, "", *({"problem": each} for each in problems))
        raise SystemExit(bool(problems))
    if problems:
        raise SystemExit("\n".join([f"Problems of the feed of {_account_text(feed)}:", *problems]))
    print_rows(arguments, f"OK: no problems found in the feed of {_account_text(feed)}")


@with_connections
def rebuild_cursor(arguments: Namespace) -> None:
    """Set the cursor to the page of the newest rows."""
    feed = open_feed(arguments)
    confirm(arguments, f"Set the cursor of {_account_text(feed)} by the rows? It is {_cursor_text(_cursor_of(feed))}.")
    before, after = feed.rebuild_cursor()
    print_rows(arguments, _moved(before, after), {"before": before, "after": after})


@with_connections
def reset(arguments: Namespace) -> None:
    """Set the cursor."""
    feed = open_feed(arguments)
    shown = _cursor_of(feed)
    confirm(arguments, f"Set the cursor of {_account_text(feed)} from {_cursor_text(shown)} to {arguments.to}?")
    before, after = feed.reset(arguments.to, expected=shown)
    text = _moved(before, after)
    if after != arguments.to:
        text += f"\nThe page that has {arguments.to} starts at {after}: its rows are deleted, and read again."
    print_rows(arguments, text, {"before": before, "after": after})


@with_connections
def views(arguments: Namespace) -> None:
    """Print the SQL of the analysts' views, or create them."""
    names = {"prefix": arguments.table_prefix, "schema": arguments.schema}
    if bool(arguments.dialect) == bool(arguments.sql_conn_id) or (arguments.apply and arguments.dialect):
        raise SystemExit(
            "Give --dialect, to print the SQL; or --sql-conn-id, to print it, or with --apply to create the views."
        )
    tables = None if arguments.dialect else open_feed_tables(arguments)
    if tables and arguments.apply:
        created = create_views(tables)
        print_rows(arguments, "\n".join(f"{name} created" for name in created), *({"view": name} for name in created))
    else:
        sql = render_views(tables.database.name if tables else arguments.dialect, **names)
        print_rows(arguments, sql.removesuffix("\n"), {"sql": sql})


@with_connections
def forget_delivery(arguments: Namespace) -> None:
    """Forget a transfer, so that its task, once it is cleared, sends it again."""
    transfer_id = arguments.transfer_id
    confirm(arguments, f"Forget transfer {transfer_id}? A clear of its task then sends it again, and bills it again.")
    task = forget(require_deliveries().open(), transfer_id, read_state, getpass.getuser())
    text = f"Transfer {transfer_id} is forgotten. Clear the {task} to send it again."
    print_rows(arguments, text, {"transfer_id": transfer_id, "task": task})


@with_connections
def clean_deliveries(arguments: Namespace) -> None:
    """Delete the rows of tasks whose deliveries have not changed for some time; delivery keys stay."""
    if arguments.older_than < MIN_AGE:
        raise SystemExit("--older-than must be 30d or more: the service keeps a draft, which may be sent, so long.")
    place, oldest = find_deliveries(), utc_now() - arguments.older_than
    if place is None or (place.file and not place.file.exists()):
        print_rows(arguments, "There is no table of deliveries: nothing to delete.", {"deleted": 0})
        return
    days = pluralize(arguments.older_than.days, "day")
    confirm(arguments, f"Delete deliveries older than {days}? A task of one that is cleared later sends again.")
    deleted = place.open(patience=0.0).clean(oldest)
    print_rows(arguments, f"{pluralize(deleted, 'row')} of {place} deleted.", {"deleted": deleted})


def print_rows(arguments: Namespace, text: str, *rows: dict[str, Any]) -> None:
    """Print sentences, or the rows if an output format is given."""
    if arguments.output:
        AirflowConsole().print_as(rows, output=arguments.output)
    else:
        print(text)  # noqa: T201


def confirm(arguments: Namespace, question: str) -> None:
    """Ask before a change; exit if the answer is not yes."""
    try:
        if arguments.yes or input(f"{question} [y/N] ").strip().lower() in ("y", "yes"):
            return
    except EOFError:
        raise SystemExit("Nothing was changed: there is no terminal to ask. Give --yes to change it.") from None
    except KeyboardInterrupt:
        pass
    raise SystemExit("Nothing was changed.")


def open_feed(arguments: Namespace) -> FeedMaintenance:
    """Return the feed that a command is about."""
    feed = KINDS[find_kind(arguments)](arguments)
    _check_known(feed)
    return feed


def find_kind(arguments: Namespace) -> str:
    """Return the key of :data:`KINDS` of the place that a command names."""
    given = [name for name in KINDS if getattr(arguments, name)]
    if len(given) != 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in KINDS)
        raise SystemExit(f"Where is the feed? Exactly one of these says it: {options}.")
    return given[0]


def open_feed_tables(arguments: Namespace) -> Tables:
    """Return the tables that a command names, without connecting."""
    return open_tables(arguments.sql_conn_id, prefix=arguments.table_prefix, schema=arguments.schema)


def open_sql_feed(tables: Tables, arguments: Namespace) -> FeedMaintenance:
    """Return the feed that a command is about."""
    return SqlFeedMaintenance(EventStore(tables, _account(arguments, lambda: list_feeds(tables))))


def _open_iceberg_feed(arguments: Namespace) -> FeedMaintenance:
    if not arguments.table:
        raise SystemExit("--iceberg-conn-id needs --table, the namespace and table of Iceberg.")
    catalog = open_catalog(arguments.iceberg_conn_id)
    # Not at the top: pyiceberg is optional.
    from outbound_transfer.lake.iceberg import IcebergEventDestination
    from outbound_transfer.lake.iceberg_maintenance import IcebergFeedMaintenance, list_feeds_of

    account = _account(arguments, lambda: list_feeds_of(catalog, arguments.table))
    return IcebergFeedMaintenance(IcebergEventDestination(catalog, arguments.table, account))


#: The option that says where a feed is, and what opens it.
KINDS: Final[dict[str, Callable[[Namespace], FeedMaintenance]]] = {
    "sql_conn_id": lambda arguments: open_sql_feed(open_feed_tables(arguments), arguments),
    "iceberg_conn_id": _open_iceberg_feed,
}


def _account(arguments: Namespace, list_accounts: Callable[[], list[str]]) -> str:
    """Return the account that a command is about: the one given, or the only one there is."""
    feeds = [arguments.account] if arguments.account else list_accounts()
    if len(feeds) != 1:
        raise SystemExit(f"--account must say which: {', '.join(feeds)}" if feeds else NO_FEED)
    return feeds[0]


def _check_known(feed: FeedMaintenance) -> None:
    """Check that a feed is there, before a question is asked about it; a command may repair its cursor."""
    with suppress(InvalidCursor):
        feed.read_cursor()


def _cursor_of(feed: FeedMaintenance) -> int | None:
    """Return the cursor; None if it is not valid."""
    try:
        return feed.read_cursor()
    except InvalidCursor:
        return None


def _account_text(feed: FeedMaintenance) -> str:
    """Return the account's name, and the site address that it is bound to."""
    address = feed.read_address()
    return feed.account if address in (None, feed.account) else f"{feed.account} ({address})"


def _cursor_text(cursor: int | None) -> str:
    return "not valid" if cursor is None else str(cursor)


def _moved(before: int | None, after: int) -> str:
    return f"The cursor was {_cursor_text(before)} and is {after}."
