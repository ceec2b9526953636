"""The command ``check``: whether a connection, the databases and the feed's reading work."""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from threading import Thread
from typing import TYPE_CHECKING, Final

import msgspec
from airflow.cli.simple_table import AirflowConsole

from outbound_transfer.airflow_compat.run_state import count_triggers, last_start
from outbound_transfer.cli.commands import NO_FEED, open_feed, open_feed_tables, with_connections
from outbound_transfer.delivery.attempt import TaskTry
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.place import find_deliveries, require_deliveries
from outbound_transfer.delivery.row import Row
from outbound_transfer.hooks.health import check_service
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.observability.findings import Finding, Health, exit_status
from outbound_transfer.store.config import table_naming
from outbound_transfer.store.health import check_feed, check_tables, describe_failure
from outbound_transfer.store.values import utc_now
from outbound_transfer.wording import format_duration, pluralize

if TYPE_CHECKING:
    from outbound_transfer.client.settings import Settings

#: Seconds after which a part is given up.
TIMEOUT: Final = 15.0

_OF_SERVICE: Final = ("service", "transfer_key", "event_key", "clock")
_OF_FEED: Final = ("warehouse", "feed")

#: Operators whose tasks write the table of deliveries before they succeed.
_DELIVERING: Final = ("DeliverFilesOperator", "SqlToOutboundTransferOperator", "CreateTransferOperator")

#: By how much the clocks of Airflow and its workers may differ.
_CLOCKS: Final = timedelta(minutes=5)


@with_connections
def check(arguments: Namespace) -> None:
    """Print a finding for each part of the set-up, and exit with :func:`.exit_status`."""
    findings = list(_check_all(arguments))
    # In a table, some texts in brackets would be styles.
    AirflowConsole(markup=False).print_as(list(map(msgspec.to_builtins, findings)), output=arguments.output)
    if status := exit_status(findings):
        raise SystemExit(status)


def _check_all(arguments: Namespace) -> Iterator[Finding]:
    settings, conn_id = None, arguments.conn_id
    try:
        settings = OutboundTransferHook(conn_id).read_settings()
        rehearsal = " It rehearses: nothing is sent." if settings.rehearses else ""
        yield Finding("connection", Health.OK, f"Connection '{conn_id}' leads to {settings.origin}.{rehearsal}")
        yield from _look(_OF_SERVICE, settings.origin, lambda: check_service(settings))
    except Exception as error:  # any secrets backend has its own
        to_do = "Correct the connection, or name another with --conn-id."
        yield msgspec.structs.replace(describe_failure("connection", f"connection '{conn_id}'", error), to_do=to_do)
        yield from _not_made(_OF_SERVICE, "connection")
    place = str(find_deliveries() or "")
    yield from _look(("deliveries", "tasks", "in_doubt"), place, lambda: _check_deliveries(conn_id))
    yield from _look(("polls",), "Airflow's database", _check_polls)
    yield from _check_feed(arguments, settings)


def _look(checks: Sequence[str], target: str, find: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of these checks; if one fails, say so, and of those after it that they were not made.

    They are made in a thread, which does not keep the process from exiting.

    :param target: what is checked, for the finding of a failure.
    """
    found: list[Finding] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for each in find():
                found.append(each)  # noqa: PERF402  # each is there as soon as it is made
        except (Exception, SystemExit) as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    done = tuple(found)  # a thread that is late may go on
    yield from done
    if missing := checks[len(done) :]:
        late = TimeoutError(f"no response within {TIMEOUT:.0f} s")
        yield describe_failure(missing[0], target, next(iter(errors), late))
        yield from _not_made(missing[1:], missing[0])


def _not_made(checks: Iterable[str], because_of: str) -> Iterator[Finding]:
    return (Finding(each, Health.UNKNOWN, "Not looked at.", f"See {because_of}.") for each in checks)


def _check_deliveries(conn_id: str) -> Iterator[Finding]:
    """Claim, write and read a temporary row, as a delivery does; compare what tasks did; count what is in doubt."""
    found, newest, count = require_deliveries().open(patience=0.0, timeout=TIMEOUT), None, 0
    text = "not made yet, the first task that needs it makes it."
    if found.database.name != "sqlite" or found.is_made():  # do not touch another program's file
        row = Row.of_task(found, ("", uuid.uuid4().hex, "", -1))
        try:
            row.claim(TaskTry("", "", "", -1, 1, "", is_fresh=True))
            row.save(phase=Phase.SENDING)
            found.find_twin(row.key, row.memory.twin(), "")
        finally:
            found.delete(row.key)
        newest, count = found.newest(), found.count_in_doubt(conn_id)
        text = f"it can be used. A task wrote there last: {_age(newest) + ' ago' if newest else 'never'}."
    yield Finding("deliveries", Health.OK, f"{found.name}: {text}")
    started = last_start(_DELIVERING)
    if started and (newest is None or newest < started - _CLOCKS):
        text = f"A task that started {_age(started)} ago has delivered, and has not written to {found.name}."
        to_do = "Tasks use another database than this shell: set deliveries_conn_id here as it is set for workers."
        yield Finding("tasks", Health.DEGRADED, text, to_do)
    else:
        yield Finding("tasks", Health.OK, f"No task has delivered without {found.name}.")
    if count:
        to_do = "Clear their tasks: the page Outbound transfers lists them. A clear does not send again what was sent."
        yield Finding("in_doubt", Health.DEGRADED, f"Deliveries in doubt: {count}.", to_do)
    else:
        yield Finding("in_doubt", Health.OK, "No delivery of 30 days is in doubt.")


def _age(since: datetime) -> str:
    return format_duration((utc_now() - since).total_seconds())


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
    place, conn_id = find_deliveries(), arguments.sql_conn_id or arguments.iceberg_conn_id
    if settings and not (conn_id or settings.event_api_key):
        yield from (Finding(each, Health.OK, "Not looked for: no event key.") for each in _OF_FEED)
        return
    if place and not conn_id:  # where the page looks for it, too
        conn_id, names = place.conn_id, table_naming()
        vars(arguments).update(sql_conn_id=conn_id, table_prefix=names["prefix"], schema=names["schema"])
    target = f"connection '{conn_id}'"
    yield from _look(_OF_FEED, target, lambda: _read_feed(arguments, target))


def _read_feed(arguments: Namespace, target: str) -> Iterator[Finding]:
    if arguments.sql_conn_id:
        tables = open_feed_tables(arguments)
        yield check_tables("warehouse", target, tables)
        if not tables.database.is_there():
            raise SystemExit(NO_FEED)
        feed = open_feed(arguments)
    else:
        feed = open_feed(arguments)
        yield Finding("warehouse", Health.OK, f"{target} has the feed of {feed.account}.")
    yield check_feed(feed, utc_now())
