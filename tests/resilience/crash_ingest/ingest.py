"""An ingest that is killed (SIGKILL) at every step and between any two, on each destination, then run again.

A step is a SQL statement, a commit, a file that is read or written, or a call of an object store. Where a reset removes
rows, it is killed at every step, too.

Each kill ends a real process: forked, with the whole package in it. After each kill the warehouse must hold whole pages
and the cursor of the last of them; after the run that follows, everything once. ``main()`` prints a table.

``--soak N`` instead lands N events from a sandbox while calls fail and the process is killed at random.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from outbound_transfer.protocol.events import Page, read_page
from outbound_transfer.protocol.messages import Response
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.destination import EventDestination, FeedMaintenance
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.maintenance import SqlFeedMaintenance
from outbound_transfer.warehouse.schema import FEED
from support.warehouses import InventedPostgresql

#: When, seen from a step. ``during`` is a race that the kill wins most of the time.
MOMENTS = ("before", "during", "after")

SQL_WAREHOUSES = ("sqlite", "duckdb", "psycopg", "psycopg2", "portable", "mysqlclient")

#: Where a reset removes rows, so that what it leaves is what was there before them.
MOVED_BACK = ("iceberg", "objects", "objects-s3")

WAREHOUSES = (*SQL_WAREHOUSES, *MOVED_BACK)


class Target(Protocol):
    """A destination that is killed: how to open it, to make it empty, and to read what is there."""

    #: What may be there, as :meth:`found` returns it: nothing, or the first pages, whole. The last one is all of it.
    states: list[dict[str, Any]]

    def prepare(self) -> None:
        """Import what :meth:`open` and :meth:`found` need, once and not in each of the many processes."""

    def empty(self) -> None:
        """Make it empty."""

    def open(self, killer: Killer | None = None) -> EventDestination:
        """Open it in the process that is killed; ``killer`` is called for each step."""

    def maintenance(self, killer: Killer | None = None) -> FeedMaintenance:
        """Open what resets it, likewise."""

    def found(self) -> dict[str, Any]:
        """Return the cursor, the ids and what else must be whole."""

    def count(self) -> list[int]:
        """Return the numbers of events and of different ids, and the cursor."""


@dataclass(frozen=True)
class WarehouseTarget:
    """A database: how to connect, and how to make it empty. It is its own hook."""

    dialect_name: str
    connect: Callable[[], Any]
    empty: Callable[[], None]
    placeholder: str = "%s"
    supports_autocommit: bool = True

    @property
    def states(self) -> list[dict[str, Any]]:
        return STATES

    def prepare(self) -> None:
        Warehouse(self).qualified(FEED.tables[0])
        __import__("duckdb"), __import__("psycopg"), __import__("psycopg2")

    def open(self, killer: Killer | None = None) -> EventDestination:
        warehouse = Warehouse(self)
        return EventStore(killer.watched(warehouse) if killer else warehouse, "acme")

    def maintenance(self, killer: Killer | None = None) -> FeedMaintenance:
        return SqlFeedMaintenance(EventStore(killer.watched(Warehouse(self)) if killer else Warehouse(self), "acme"))

    def found(self) -> dict[str, Any]:
        return look(self)

    def count(self) -> list[int]:
        warehouse = Warehouse(self)
        with warehouse.read() as cursor:
            (row,) = fetch_all(warehouse.run(cursor, "SELECT count(*), count(DISTINCT event_id) FROM {events}"))
            ((position,),) = fetch_all(warehouse.run(cursor, "SELECT [cursor] FROM {feed_cursor}"))
        return [*row, position]

    def get_conn(self) -> Any:
        return self.connect()

    def set_autocommit(self, connection: Any, autocommit: bool) -> None:
        connection.autocommit = autocommit


# ---------------------------------------------------------------------------------------------------------- the feed


def _page(cursor: int, *lines: bytes, has_more: bool = True) -> Page:
    headers = {
        "content-type": "application/x-ndjson",
        "x-next-cursor": str(cursor + len(lines)),
        "x-has-more": str(has_more).lower(),
    }
    return read_page(Response(200, headers, b"".join(line + b"\n" for line in lines)), cursor=cursor)


def _event(number: int) -> bytes:
    return json.dumps({"event_id": number, "type": "transfer_sent", "data": {"n": number}}).encode()


#: With a rejected line, an event twice in a page and one twice across pages; the last page is landed as one all new.
PAGES = {
    page.cursor: page
    for page in (
        _page(0, _event(1), _event(2), b"junk", _event(2), _event(3)),
        _page(5, _event(3), _event(4), _event(5)),
        _page(8, b"more junk", _event(6)),
        _page(10, _event(7), _event(8), has_more=False),
    )
}


def states_without_keys() -> list[dict[str, Any]]:
    """What may be in a destination that searches for no ids: an event on two pages is there twice."""
    states, ids, rejected = [{"cursor": 0, "ids": [], "rejected": 0}], [], 0
    for page in PAGES.values():
        ids = sorted([*ids, *{int(event.event_id) for event in page.events}])
        rejected += len(page.rejected)
        states.append({"cursor": page.next_cursor, "ids": ids, "rejected": rejected})
    return states


def _states() -> list[dict[str, Any]]:
    """What may be in the warehouse: nothing, or the first pages, whole."""
    states, ids, rejected = [{"cursor": 0, "ids": [], "rejected": 0, "polls": []}], [], 0
    for page in PAGES.values():
        ids = sorted({*ids, *(int(event.event_id) for event in page.events)})
        rejected += len(page.rejected)
        polls = [*states[-1]["polls"], [page.cursor, page.next_cursor]]
        states.append({"cursor": page.next_cursor, "ids": ids, "rejected": rejected, "polls": polls})
    return states


STATES = _states()


def ingest(target: Target, killer: Killer | None = None) -> None:
    """Load all pages from where the cursor is."""
    destination = target.open(killer)
    cursor = destination.get_or_create_cursor()
    while cursor in PAGES:
        destination.load_page(PAGES[cursor])
        cursor = PAGES[cursor].next_cursor


def reset_and_ingest(target: Target, killer: Killer | None = None) -> None:
    """Remove all pages but the first, and load them again."""
    target.maintenance(killer).reset(5)
    ingest(target)


def look(hook: Any) -> dict[str, Any]:
    """What the warehouse holds."""
    warehouse = Warehouse(hook)
    with warehouse.read() as cursor:
        if not all(_is_there(warehouse, table) for table in FEED.tables):
            return STATES[0]

        def rows(query: str) -> list[tuple[Any, ...]]:
            return fetch_all(warehouse.run(cursor, query))

        return {
            "cursor": next((row[0] for row in rows("SELECT [cursor] FROM {feed_cursor}")), 0),
            "ids": sorted(int(row[0]) for row in rows("SELECT event_id FROM {events}")),
            "rejected": len(rows("SELECT line_number FROM {rejected_lines}")),
            "polls": sorted([list(row) for row in rows("SELECT cursor_from, cursor_to FROM {feed_polls}")]),
        }


def _is_there(warehouse: Warehouse, table: Any) -> bool:
    with warehouse.read() as cursor:
        return warehouse.table_exists(cursor, table)


# --------------------------------------------------------------------------------------------------------- the killing


@dataclass
class Killer:
    """Kills its process at the n-th step of a destination (from 1): of a database, connecting is one, too."""

    at: int
    moment: str
    report: int
    count: int = 0

    def watched(self, warehouse: Warehouse) -> Warehouse:
        connect = warehouse.connect
        warehouse.connect = lambda: _Watched(self.step("connect", connect), self)
        return warehouse

    def step(self, what: str, run: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count != self.at:
            return run()
        os.write(self.report, what[:60].encode())
        if self.moment == "before":
            _kill()
        if self.moment == "during":
            threading.Timer(random.uniform(0, 0.002), _kill).start()
        try:
            return run()
        finally:
            _kill()  # after a statement that fails, too: portable SQL asks so whether a table is there


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class _Watched:
    """A connection or cursor that reports its steps."""

    def __init__(self, inner: Any, killer: Killer) -> None:
        self.__dict__.update(inner=inner, killer=killer)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "cursor":
            return lambda: _Watched(found(), self.killer)
        if name in ("execute", "executemany", "copy", "copy_expert", "commit", "close"):
            return lambda *args: self.killer.step(str(args[0]) if args else name, lambda: found(*args))
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


def in_a_process(work: Callable[[int], Any]) -> tuple[int, bytes]:
    """Run ``work`` in a forked process; how it ended (minus the signal), and what it wrote to its pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            work(write)
            os._exit(0)
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode()[:2_000])
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def asked(target: Target) -> dict[str, Any]:
    """What the destination holds, asked in a process of its own: DuckDB must not be open where others are forked."""
    code, said = in_a_process(lambda write: os.write(write, json.dumps(target.found()).encode()))
    assert code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


#: What is killed.
Work: TypeAlias = Callable[[Target, "Killer | None"], None]


@dataclass
class Account:
    """What was met in one warehouse at one moment."""

    kills: int = 0
    steps: set[str] = field(default_factory=set)
    left: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def kill_everywhere(target: Target, moment: str, every: int = 1, work: Work = ingest) -> Account:
    """Kill at every n-th step; which, and what was found afterwards."""
    account = Account()
    target.prepare()
    for at in range(1, 10_000, every):
        target.empty()
        if work is not ingest:
            assert in_a_process(lambda _: ingest(target)) == (0, b"")
        code, said = in_a_process(lambda write, at=at: work(target, Killer(at, moment, write)))  # type: ignore[misc]
        if code == 0:
            break
        if code != -signal.SIGKILL:
            account.wrong.append(f"step {at}: {said.decode()}")
            break
        _judge(account, target, said.decode(), at)
    return account


def _judge(account: Account, target: Target, step: str, at: int) -> None:
    account.kills += 1
    account.steps.add(step.split("(")[0].split('"')[0].strip())
    found = asked(target)
    if found not in target.states:
        account.wrong.append(f"step {at}, {step}: left {found}")
        return
    account.left[found["cursor"]] = account.left.get(found["cursor"], 0) + 1
    code, said = in_a_process(lambda _: ingest(target))
    if code != 0 or asked(target) != target.states[-1]:
        account.wrong.append(f"step {at}, {step}: the next run {said.decode() or asked(target)}")


# ----------------------------------------------------------------------------------------------------------- warehouses


def _drop(connect: Callable[[], Any]) -> None:
    names = ("events", "feed_cursor", "feed_polls", "rejected_lines", "schema_version")
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        # What a killed session held goes a moment after it.
        for name in names:
            cursor.execute(f"DROP TABLE IF EXISTS outbound_transfer_{name}")
        connection.commit()


def _file(name: str, file: Path) -> WarehouseTarget:
    def empty() -> None:
        for each in file.parent.glob(file.name + "*"):
            each.unlink()

    def connect() -> Any:
        if name == "sqlite":
            import sqlite3

            return sqlite3.connect(file)
        import duckdb

        return duckdb.connect(file)

    return WarehouseTarget(name, connect, empty)


def target_of(name: str, folder: Path, database_of: Callable[[str], Any]) -> Target:
    """The destination of a name.

    :param database_of: gives the database of a warehouse that has a server, as :func:`databases` does.
    """
    if name == "iceberg":
        from resilience.crash_ingest.iceberg import IcebergTarget

        return IcebergTarget(folder / "iceberg")
    if name in ("objects", "objects-s3"):
        from resilience.crash_ingest.objects import local_target, s3_target

        return s3_target(database_of(name)) if name == "objects-s3" else local_target(folder / "objects")
    if name in ("sqlite", "duckdb"):
        return _file(name, folder / f"warehouse.{name}")
    database = database_of(name)

    def connect() -> Any:
        return database.connect("psycopg" if name == "portable" else name)

    # A name that this package does not know: portable SQL, over PostgreSQL because that is real and at hand.
    dialects = {"portable": InventedPostgresql.name, "mysqlclient": "mysql"}
    return WarehouseTarget(dialects.get(name, "postgresql"), connect, lambda: _drop(connect))


@contextmanager
def databases() -> Iterator[Callable[[str], Any]]:
    """The database of each warehouse that has a server; the server is started when it is first asked for."""
    from support import mariadb, object_storage, postgres

    servers = {"objects-s3": object_storage.running_s3, "mysqlclient": mariadb.running_server}
    started: dict[Any, Any] = {}
    with ExitStack() as stack:

        def database_of(name: str) -> Any:
            server = servers.get(name, postgres.running_server)
            if server not in started:
                started[server] = stack.enter_context(server())
            return started[server]

        yield database_of


# ----------------------------------------------------------------------------------------------------------------- main


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where anything was lost, doubled or half there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", choices=WAREHOUSES, action="append")
    parser.add_argument("--soak", type=int, metavar="N")
    options = parser.parse_args(arguments)
    names = options.warehouse or WAREHOUSES
    # What a killed process wrote is the kernel's, on a disk or not; many small commits are not worth waiting for one.
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with databases() as database_of:
            if options.soak:
                from resilience.crash_ingest import soak

                return soak.run(options.soak, [name for name in names if name != "portable"], folder, database_of)
            return _table({name: target_of(name, folder, database_of) for name in names})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _table(targets: dict[str, Target]) -> int:
    print(
        f"{'warehouse':<15} {'killed':<16} {'when':<7} {'kills':>5} {'steps':>6} {'wrong':>6}"
        "  found after the kill (cursor: times)"
    )
    wrong: list[str] = []
    for name, target in targets.items():
        for work in (ingest, reset_and_ingest) if name in MOVED_BACK else (ingest,):
            for moment in MOMENTS:
                started = time.monotonic()
                account = kill_everywhere(target, moment, work=work)
                left = ", ".join(f"{cursor}: {times}" for cursor, times in sorted(account.left.items()))
                print(
                    f"{name:<15} {work.__name__:<16} {moment:<7} {account.kills:>5} {len(account.steps):>6}"
                    f" {len(account.wrong):>6}  {left}   ({time.monotonic() - started:.0f} s)",
                    flush=True,
                )
                wrong += [f"{name}, {work.__name__}, {moment}, {each}" for each in account.wrong]
    print("\n".join(wrong) or "Nothing was lost, doubled or left half done.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
