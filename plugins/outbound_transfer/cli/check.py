"""The command ``check``: tests whether a connection, the databases and the feed ingestion work."""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from threading import Thread
from typing import Final

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
from outbound_transfer.store import shown_deliveries
from outbound_transfer.store.config import table_naming
from outbound_transfer.store.health import check_feed, check_tables, describe_failure
from outbound_transfer.store.rows import utc_now
from outbound_transfer.wording import format_duration, pluralize

#: Seconds after which a part is given up; and by how much the clocks of Airflow and its workers may differ.
TIMEOUT: Final = 15.0
_CLOCKS: Final = timedelta(minutes=5)

_OF_SERVICE: Final = ("connection", "service", "transfer_key", "event_key", "clock")
_OF_FEED: Final = ("warehouse", "feed")

#: Operators whose tasks write the table of deliveries before they succeed.
_DELIVERING: Final = ("DeliverFilesOperator", "SqlToOutboundTransferOperator", "CreateTransferOperator")


@with_connections
def check(arguments: Namespace) -> None:
    """Print a finding for each part of the set-up, and exit with :func:`.exit_status`."""
    findings = list(_check_all(arguments))
    # In a table, some strings in brackets would be read as styles.
    AirflowConsole(markup=False).print_as(list(map(msgspec.to_builtins, findings)), output=arguments.output)
    if status := exit_status(findings):
        raise SystemExit(status)


def _check_all(arguments: Namespace) -> Iterator[Finding]:
    conn_id, place = arguments.conn_id, find_deliveries()
    service = list(_look(_OF_SERVICE, f"connection '{conn_id}'", lambda: _check_service(conn_id)))
    yield from service
    yield from _look(("deliveries", "tasks", "in_doubt"), str(place or ""), lambda: _check_deliveries(conn_id))
    yield from _look(("polls",), "Airflow's database", _check_polls)
    feed_conn_id, works = arguments.sql_conn_id or arguments.iceberg_conn_id, service[0].status is Health.OK
    if not feed_conn_id and works and not OutboundTransferHook(conn_id).read_settings().event_api_key:
        yield from (Finding(each, Health.OK, "Not checked: no event key.") for each in _OF_FEED)
        return
    if place and not feed_conn_id:  # where the page looks for it, too
        feed_conn_id, names = place.conn_id, table_naming()
        vars(arguments).update(sql_conn_id=feed_conn_id, table_prefix=names["prefix"], schema=names["schema"])
    target = f"connection '{feed_conn_id}'"
    yield from _look(_OF_FEED, target, lambda: _check_feed(arguments, target))


def _check_service(conn_id: str) -> Iterator[Finding]:
    settings = OutboundTransferHook(conn_id).read_settings()
    rehearsal = " It rehearses: nothing is sent." if settings.rehearses else ""
    yield Finding("connection", Health.OK, f"Connection '{conn_id}' leads to {settings.origin}.{rehearsal}")
    yield from check_service(settings)


def _look(checks: Sequence[str], target: str, find: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of these checks; if one fails, report that for ``target``, and the rest as not checked.

    They are made in a thread, which does not keep the process from exiting.
    """
    found, errors = list[Finding](), list[BaseException]()

    def run() -> None:
        try:
            for each in find():
                found.append(each)  # available to the other thread at once
        except (Exception, SystemExit) as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    done = tuple(found)  # a thread that is late may continue
    yield from done
    if missing := checks[len(done) :]:
        late = TimeoutError(f"no response within {TIMEOUT:.0f} s")
        yield describe_failure(missing[0], target, next(iter(errors), late))
        yield from (Finding(each, Health.UNKNOWN, "Not checked.", f"See {missing[0]}.") for each in missing[1:])


def _check_deliveries(conn_id: str) -> Iterator[Finding]:
    """Claim, write and read a temporary row, as a delivery does; compare it with what tasks did; count doubts."""
    found, newest, count = require_deliveries().open(patience=0.0, timeout=TIMEOUT), None, 0
    text = "not created yet; the first task that needs it creates it."
    if found.database.name != "sqlite" or shown_deliveries.is_made(found):  # do not touch another program's file
        row = Row.of_task(found, ("", uuid.uuid4().hex, "", -1))
        try:
            row.claim(TaskTry("", "", "", -1, 1, ""))
            row.save(phase=Phase.SENDING)
            found.find_twin([row.key], row.memory.twin(), "")
        finally:
            shown_deliveries.delete(found, row.key)
        newest, count = shown_deliveries.newest(found), shown_deliveries.count_in_doubt(found, conn_id)
        text = f"it can be used. Last written to by a task: {_age(newest) + ' ago' if newest else 'never'}."
    yield Finding("deliveries", Health.OK, f"{found.name}: {text}")
    started = last_start(_DELIVERING)
    if started and (newest is None or newest < started - _CLOCKS):
        text = f"A task that started {_age(started)} ago delivered, but did not write to {found.name}."
        to_do = "Tasks use a different database than this shell: set deliveries_conn_id here as it is set for workers."
        yield Finding("tasks", Health.DEGRADED, text, to_do)
    else:
        yield Finding("tasks", Health.OK, f"No task has delivered without {found.name}.")
    to_do = "Clear their tasks, which the page Outbound transfers lists. A clear does not send a sent transfer again."
    doubt = Finding("in_doubt", Health.DEGRADED, f"Deliveries in doubt: {count}.", to_do)
    yield doubt if count else Finding("in_doubt", Health.OK, "No delivery of the last 30 days is in doubt.")


def _age(since: datetime) -> str:
    return format_duration((utc_now() - since).total_seconds())


def _check_polls() -> Iterator[Finding]:
    waiting, alive = count_triggers("outbound_transfer.triggers.")
    text = f"Tasks are waiting ({waiting}), but no triggerer is alive."
    broken = Finding("polls", Health.BROKEN, text, "Start a triggerer: without one, no wait ends.")
    text = f"{pluralize(waiting, 'task')} waiting without a worker; {pluralize(alive, 'triggerer')} alive."
    yield broken if waiting and not alive else Finding("polls", Health.OK, text)


def _check_feed(arguments: Namespace, target: str) -> Iterator[Finding]:
    if arguments.sql_conn_id:
        tables = open_feed_tables(arguments)
        yield check_tables("warehouse", target, tables)
        if not tables.database.is_there():
            raise SystemExit(NO_FEED)
    feed = open_feed(arguments)
    if not arguments.sql_conn_id:
        yield Finding("warehouse", Health.OK, f"{target} has the feed of {feed.account}.")
    yield check_feed(feed.status(counts=False), utc_now())
