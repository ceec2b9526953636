"""Destinations that are killed, and what their steps are.

A step is a SQL statement or a commit, a file that is read or written.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import s3fs  # noqa: F401  # so that it is not imported in each of the many processes
from pyarrow import parquet
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import pyarrow
from pyiceberg.serializers import ToOutputFile
from sqlalchemy.engine.default import DefaultDialect

from outbound_transfer.lake.iceberg import IcebergEventDestination
from outbound_transfer.store.destination import EventDestination
from outbound_transfer.store.errors import UnknownFeed
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.personal_data import AddressSearch, personal_data_of
from outbound_transfer.store.tables import FEED, Tables
from resilience.crash_ingest.killer import Killer
from support import mariadb, postgres
from support.feed_pages import CURSOR, IDS, REJECTED, drop_tables, event, page
from support.iceberg import TABLE, open_lake
from support.warehouses import Hook, hook_at, observe

SQL_WAREHOUSES = ("sqlite", "duckdb", "psycopg", "psycopg2", "mysqlclient")
LAKES = ("iceberg",)
WAREHOUSES = (*SQL_WAREHOUSES, *LAKES)


class Target(ABC):
    """A destination: how to open it in a process, to make it empty, and to read what is there.

    :ivar has_keys: whether it takes an event that is on two pages once.
    """

    has_keys = False

    def prepare(self) -> None:  # noqa: B027  # most import nothing late
        """Import what takes long, once and not in each of the many processes."""

    @abstractmethod
    def empty(self) -> None:
        """Make it empty."""

    @abstractmethod
    def open(self, killer: Killer | None = None) -> EventDestination:
        """Open it; ``killer`` is called for each step."""

    @abstractmethod
    def maintenance(self, killer: Killer | None = None) -> EventDestination:
        """Open what resets it, likewise."""

    @abstractmethod
    def read(self) -> tuple[int, list[str], int]:
        """Return the cursor, the ids of events, and the number of rejected lines."""

    def erase(self, search: AddressSearch, killer: Killer | None = None) -> None:
        """Erase a person; a lake's rows are its engine's to change."""
        raise NotImplementedError

    def count_persons(self, search: AddressSearch) -> int:  # as above
        """Return how many rows have a person's address."""
        return 0

    def found(self, search: AddressSearch) -> dict[str, Any]:
        """Return what is there, what ``feed verify`` says of it, and how many rows have a person's address."""
        try:
            problems = list(self.maintenance().find_problems())
            cursor, ids, rejected = self.read()
        except UnknownFeed:
            problems, cursor, ids, rejected = [], 0, [], 0
        persons = self.count_persons(search)
        numbers = sorted(map(int, ids))
        return {"cursor": cursor, "ids": numbers, "rejected": rejected, "problems": problems, "persons": persons}


class WarehouseTarget(Target):
    """A SQL database.

    :param file: of SQLite or DuckDB.
    """

    has_keys = True

    def __init__(self, hook: Hook, file: Path | None = None) -> None:
        self.hook, self._file = hook, file

    def empty(self) -> None:
        if self._file:
            for each in self._file.parent.glob(f"{self._file.name}*"):
                each.unlink()
        else:
            drop_tables(self.hook)

    def _warehouse(self, killer: Killer | None) -> Tables:
        warehouse = Tables(self.hook)
        if killer:
            observe(warehouse.database, killer.step)
        return warehouse

    def open(self, killer: Killer | None = None) -> EventStore:
        return EventStore(self._warehouse(killer), "acme")

    def maintenance(self, killer: Killer | None = None) -> EventStore:
        return self.open(killer)

    def erase(self, search: AddressSearch, killer: Killer | None = None) -> None:
        personal_data_of(self._warehouse(killer), "the warehouse").erase(search)

    def count_persons(self, search: AddressSearch) -> int:
        found = personal_data_of(self._warehouse(None), "the warehouse").find(search)
        return sum(map(len, found.values()))

    def read(self) -> tuple[int, list[str], int]:
        ((cursor,),) = self.hook.fetch(CURSOR)
        return cursor, [each for (each,) in self.hook.fetch(IDS)], len(self.hook.fetch(REJECTED))

    def found(self, search: AddressSearch) -> dict[str, Any]:
        is_there = self._warehouse(None).exist(FEED)
        nothing = {"cursor": 0, "ids": [], "rejected": 0, "problems": [], "persons": 0}
        return super().found(search) if is_there else nothing


class IcebergTarget(Target):
    """An Iceberg table with a catalog in SQLite and its files in the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        with TemporaryDirectory() as folder:
            other = IcebergTarget(Path(folder) / "iceberg")
            other.empty()
            other.open().get_or_create_cursor()
            other.open().load_page(page(0, event(1)))
            other.maintenance().reset(0)
            list(other.maintenance().find_problems())

    def empty(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def _catalog(self, killer: Killer | None) -> Any:
        if killer:
            for owner, name, what in (
                (DefaultDialect, "do_execute", "SQL statement"),
                (DefaultDialect, "do_commit", "SQL commit"),
                (pyarrow.PyArrowFile, "create", "open a new file"),
                (parquet.ParquetWriter, "close", "write a data file"),
                (AvroOutputFile, "__exit__", "write a manifest or a list of them"),
                (ToOutputFile, "table_metadata", "write the metadata"),
                (pyarrow.PyArrowFile, "open", "read a file"),
            ):
                killer.watch(owner, name, what)
        return open_lake(self._folder).catalog

    def open(self, killer: Killer | None = None) -> IcebergEventDestination:
        # Many pages a minute: the newest snapshots stay, as of an hour of the feed.
        return IcebergEventDestination(self._catalog(killer), TABLE, "acme", keep_snapshots_for=timedelta(0))

    def maintenance(self, killer: Killer | None = None) -> IcebergEventDestination:
        return IcebergEventDestination(self._catalog(killer), TABLE, "acme")

    def read(self) -> tuple[int, list[str], int]:
        lake = open_lake(self._folder)
        return self.maintenance().read_cursor(), lake.ids(), len(lake.rows()) - len(lake.ids())


def target_of(name: str, folder: Path, database_of: Callable[[str], Any]) -> Target:
    """The destination of a name.

    :param database_of: gives the database of a destination that has a server, as :func:`databases` does.
    """
    if name == "iceberg":
        return IcebergTarget(folder / "iceberg")
    return warehouse_of(name, folder, database_of)


def warehouse_of(name: str, folder: Path, database_of: Callable[[str], Any]) -> WarehouseTarget:
    """The SQL database of a name, as :func:`target_of`."""
    if name in ("sqlite", "duckdb"):
        file = folder / f"warehouse.{name}"
        return WarehouseTarget(hook_at(name, file), file)
    return WarehouseTarget(hook_at(name, database_of(name)))


@contextmanager
def databases() -> Iterator[Callable[[str], Any]]:
    """The database of each destination that has a server; the server is started when it is first asked for."""
    servers = {"mysqlclient": mariadb.running_server}
    started: dict[Any, Any] = {}
    with ExitStack() as stack:

        def database_of(name: str) -> Any:
            server = servers.get(name, postgres.running_server)
            if server not in started:
                started[server] = stack.enter_context(server())
            return started[server]

        yield database_of
