"""The command ``check``: whether a connection, the databases and the feed's reading work."""

from __future__ import annotations

import threading
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from airflow.cli.simple_table import AirflowConsole
from rich.markup import escape

from outbound_transfer.airflow_compat.run_state import count_triggers
from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.cli.commands import (
    KINDS,
    NO_FEED,
    find_kind,
    open_feed,
    open_feed_tables,
    open_sql_feed,
    with_connections,
)
from outbound_transfer.client.wording import format_duration, pluralize
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.place import find_deliveries, require_deliveries
from outbound_transfer.delivery.row import Row
from outbound_transfer.hooks.health import check_service
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.observability.findings import Finding, Health, exit_status
from outbound_transfer.store.config import table_naming
from outbound_transfer.store.health import check_feed, check_tables, describe_failure
from outbound_transfer.store.values import utc_now

if TYPE_CHECKING:
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.store.deliveries import Deliveries

T = TypeVar("T")

#: Seconds after which a check is given up: of the service, and of what a database is asked for at once.
TIMEOUT: Final = 15.0

_OF_SERVICE: Final = ("service", "transfer_key", "event_key", "clock")


@with_connections
def check(arguments: Namespace) -> None:
    """Print a finding for each part of the set-up, and exit with :func:`.exit_status`."""
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
        settings = OutboundTransferHook(conn_id).read_settings()
        rehearsal = " It rehearses: nothing is sent." if settings.rehearses else ""
        yield Finding("connection", Health.OK, f"Connection '{conn_id}' leads to {settings.origin}.{rehearsal}")
    except Exception as error:  # any secrets backend has its own
        to_do = "Correct the connection, or name another with --conn-id."
        yield msgspec.structs.replace(describe_failure("connection", f"connection '{conn_id}'", error), to_do=to_do)
    yield from _guard(_OF_SERVICE, _check_service(settings))
    yield from _guard(("deliveries", "in_doubt"), _check_deliveries(conn_id))
    yield from _guard(("polls",), _check_polls())
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


def _check_deliveries(conn_id: str) -> Iterator[Finding]:
    found = require_deliveries().open(patience=0.0, timeout=TIMEOUT)
    yield _run(found.name, lambda: _try_deliveries(found))
    count = _run(found.name, lambda: found.count_in_doubt(conn_id) if found.is_made() else 0)
    to_do = "Clear their tasks: the page Outbound transfers lists them. A clear does not send again what was sent."
    if count:
        yield Finding("in_doubt", Health.DEGRADED, f"Deliveries in doubt: {count}.", to_do)
    else:
        yield Finding("in_doubt", Health.OK, "No delivery of 30 days is in doubt.")


def _try_deliveries(found: Deliveries) -> Finding:
    """Claim, write and read a temporary row, as a delivery does with its own."""
    if found.database.name == "sqlite" and not found.is_made():  # do not touch another program's file
        return Finding("deliveries", Health.OK, f"{found.name}: not made yet, the first task that needs it makes it.")
    row = Row.of_task(found, ("", uuid.uuid4().hex, "", -1))
    try:
        row.claim(TaskTry("", "", "", -1, 1, "", is_fresh=True))
        row.save(phase=Phase.SENDING)
        found.find_twin(row.key, row.memory.twin(), "")
    finally:
        found.delete(row.key)
    newest = found.newest()
    age = f"{format_duration((utc_now() - newest).total_seconds())} ago" if newest else "never"
    to_do = "If a task has delivered since, tasks use another database than this shell."
    text = f"{found.name} can be used. A task began a delivery there last: {age}."
    return Finding("deliveries", Health.OK, text, to_do)


def _check_polls() -> Iterator[Finding]:
    """Return who polls for the tasks that wait without a worker."""
    waiting, alive = count_triggers("outbound_transfer.triggers.")
    if waiting and not alive:
        to_do = "Start a triggerer: no wait ends meanwhile."
        yield Finding("polls", Health.BROKEN, f"Tasks wait ({waiting}), and no triggerer is alive.", to_do)
    else:
        tasks, triggerers = pluralize(waiting, "task"), pluralize(alive, "triggerer")
        yield Finding("polls", Health.OK, f"{tasks} waiting without a worker; {triggerers} alive.")


def _check_feed(arguments: Namespace, settings: Settings | None) -> Iterator[Finding]:
    if not any(getattr(arguments, name) for name in KINDS):
        if settings and not settings.event_api_key:
            yield from (Finding(name, Health.OK, "Not looked for: no event key.") for name in ("warehouse", "feed"))
            return
        place = find_deliveries()
        if not (place and place.conn_id):
            to_do = "Give --sql-conn-id or --iceberg-conn-id."
            yield Finding("warehouse", Health.UNKNOWN, "Nothing says where the feed is loaded.", to_do)
            yield _not_made("feed", "warehouse")
            return
        # Where the page looks for it, too.
        names = table_naming()
        found = {"sql_conn_id": place.conn_id, "table_prefix": names["prefix"], "schema": names["schema"]}
        arguments = Namespace(**{**vars(arguments), **found})
    if find_kind(arguments) == "sql_conn_id":
        name, tables = f"connection '{arguments.sql_conn_id}'", open_feed_tables(arguments)
        yield _run(name, lambda: check_tables("warehouse", name, tables))
        if not tables.database.is_there():
            raise SystemExit(NO_FEED)
        yield _run(name, lambda: check_feed(open_sql_feed(tables, arguments), utc_now()))
    else:
        name = f"connection '{arguments.iceberg_conn_id}'"
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
