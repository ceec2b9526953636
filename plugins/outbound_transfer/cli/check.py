"""The command ``check``: whether a connection, the databases and the feed's reading work. It changes nothing."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from airflow.cli.simple_table import AirflowConsole
from rich.markup import escape

from outbound_transfer.cli.commands import (
    KINDS,
    NO_FEED,
    find_kind,
    open_feed,
    open_feed_warehouse,
    open_sql_feed,
    with_connections,
)
from outbound_transfer.delivery.place import DeliveriesPlace, require_deliveries
from outbound_transfer.hooks.health import check_service, read_settings
from outbound_transfer.ledger.config import is_ledger_missing, open_ledger, read_config
from outbound_transfer.protocol.health import Finding, Health, exit_status
from outbound_transfer.warehouse.health import (
    check_feed,
    check_in_doubt,
    check_tables,
    describe_failure,
)
from outbound_transfer.warehouse.schema import (
    ACCOUNTS_GROUP,
    FEED,
    LEDGER,
    LISTING,
)
from outbound_transfer.warehouse.timestamps import utc_now

if TYPE_CHECKING:
    from outbound_transfer.client import Settings

T = TypeVar("T")

#: Seconds after which a check is given up: of the service, and of what a database is asked for at once.
TIMEOUT: Final = 15.0

_OF_SERVICE: Final = ("service", "transfer_key", "event_key", "clock")


@with_connections
def check(arguments: Namespace) -> None:
    """Print a finding for each part of the set-up, and exit with :func:`.health.exit_status`."""
    findings = list(_check_all(arguments))
    rows = [msgspec.to_builtins(each) for each in findings]
    if arguments.output == "table":  # which takes some texts in brackets for styles
        rows = [{name: escape(value) for name, value in row.items()} for row in rows]
    AirflowConsole().print_as(rows, output=arguments.output)
    if status := exit_status(findings):
        raise SystemExit(status)


def _check_all(arguments: Namespace) -> Iterator[Finding]:
    settings, conn_id = None, arguments.conn_id
    try:
        settings = read_settings(conn_id)
        rehearsal = " It rehearses: nothing is sent." if settings.rehearses else ""
        yield Finding("connection", Health.OK, f"Connection '{conn_id}' leads to {settings.origin}.{rehearsal}")
    except Exception as error:  # any secrets backend has its own
        to_do = "Correct the connection, or name another with --conn-id."
        yield msgspec.structs.replace(describe_failure("connection", f"connection '{conn_id}'", error), to_do=to_do)
    yield from _guard(_OF_SERVICE, _check_service(settings))
    yield from _guard(("state",), _check_state())
    yield from _guard(("ledger", "in_doubt"), _check_ledger(conn_id))
    yield from _guard(("warehouse", "feed"), _check_feed(arguments, settings))


def _guard(checks: Iterable[str], findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of these checks; if one fails, say so, and of those after it that they were not made."""
    left = list(checks)
    try:
        for each in findings:
            left.remove(each.check)
            yield each
    except (Exception, SystemExit) as error:
        target, cause = (error.target, error.cause) if isinstance(error, _CheckFailed) else ("", error)
        yield describe_failure(left[0], target, cause)
        yield from (_not_made(name, left[0]) for name in left[1:])


def _not_made(check: str, because_of: str) -> Finding:
    return Finding(check, Health.UNKNOWN, "Not looked at.", f"See {because_of}.")


def _check_service(settings: Settings | None) -> Iterator[Finding]:
    if settings:
        yield from _run(settings.origin, lambda: check_service(settings))
    else:
        yield from (_not_made(name, "connection") for name in _OF_SERVICE)


def _check_state() -> Iterator[Finding]:
    place = require_deliveries()
    yield _run(str(place), lambda: _check_deliveries(place))


def _check_deliveries(place: DeliveriesPlace) -> Finding:
    """Return whether the database of the table of deliveries responds."""
    if place.file and not place.file.exists():
        return Finding("state", Health.OK, f"{place} is not there yet: the first task that needs it makes it.")
    is_made = place.open().is_made()
    return Finding(
        "state", Health.OK, f"{place} responds. Table of deliveries: {'there' if is_made else 'not made yet'}."
    )


def _check_ledger(conn_id: str) -> Iterator[Finding]:
    if config := read_config():
        name, warehouse = str(DeliveriesPlace(config.conn_id, config.file)), open_ledger(config, TIMEOUT)
        yield _run(name, lambda: check_tables("ledger", name, warehouse, (LEDGER,)))
        yield _run(name, lambda: check_in_doubt(warehouse, conn_id))
        return
    to_do = "Set ledger_conn_id; or default_ledger to False, if none is wanted." if is_ledger_missing() else ""
    health = Health.UNKNOWN if to_do else Health.OK
    yield Finding("ledger", health, "Deliveries are not recorded.", to_do)
    yield Finding("in_doubt", health, "Not known, as deliveries are not recorded.", to_do and "See ledger.")


def _check_feed(arguments: Namespace, settings: Settings | None) -> Iterator[Finding]:
    if not any(getattr(arguments, name) for name in KINDS):
        if settings and not settings.event_api_key:
            yield from (Finding(name, Health.OK, "Not looked for: no event key.") for name in ("warehouse", "feed"))
            return
        ledger = read_config()
        if not (ledger and ledger.conn_id):
            to_do = "Give --sql-conn-id, --path or --iceberg-conn-id."
            yield Finding("warehouse", Health.UNKNOWN, "Nothing says where the feed is loaded.", to_do)
            yield _not_made("feed", "warehouse")
            return
        # Where the page looks for it, too.
        found = {"sql_conn_id": ledger.conn_id, "table_prefix": ledger.prefix, "schema": ledger.schema}
        arguments = Namespace(**{**vars(arguments), **found})
    if find_kind(arguments) == "sql_conn_id":
        name, warehouse = f"connection '{arguments.sql_conn_id}'", open_feed_warehouse(arguments)
        yield _run(name, lambda: check_tables("warehouse", name, warehouse, (ACCOUNTS_GROUP, FEED, LISTING)))
        if not warehouse.begin_inspection():
            raise SystemExit(NO_FEED)
        yield _run(name, lambda: check_feed(open_sql_feed(warehouse, arguments), utc_now()))
    else:
        name = arguments.path or f"connection '{arguments.iceberg_conn_id}'"
        feed = _run(name, lambda: open_feed(arguments))
        yield Finding("warehouse", Health.OK, f"{name} has the feed of {feed.account}.")
        yield _run(name, lambda: check_feed(feed, utc_now()))


class _CheckFailed(Exception):
    """Carries the error of a check, and what it is about."""

    def __init__(self, target: str, cause: BaseException) -> None:
        super().__init__()
        self.target, self.cause = target, cause


def _run(target: str, find: Callable[[], T]) -> T:
    """Run a function in a thread, which does not keep the process from exiting.

    :param target: what the function calls, for the finding if it fails.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(find())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result(TIMEOUT)
    except (Exception, SystemExit) as error:
        late = TimeoutError(f"no response within {TIMEOUT:.0f} s")
        raise _CheckFailed(target, error if future.done() else late) from None
