"""An Iceberg table that an ingest is killed at: steps are its catalog's SQL, and each file read, written or removed."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbound_transfer.warehouse.destination import FeedMaintenance

if TYPE_CHECKING:
    from outbound_transfer.lake.iceberg import IcebergEventDestination
    from resilience.crash_ingest.ingest import Killer


class IcebergTarget:
    """An Iceberg table with a catalog in SQLite and its files in the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def states(self) -> list[dict[str, Any]]:
        from resilience.crash_ingest.ingest import states_without_keys

        return states_without_keys()

    def prepare(self) -> None:
        from resilience.crash_ingest.ingest import ingest, reset_and_ingest

        with tempfile.TemporaryDirectory() as folder:
            other = IcebergTarget(Path(folder) / "iceberg")
            other.empty()
            ingest(other)
            reset_and_ingest(other)
            other.found()

    def empty(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def open(self, killer: Killer | None = None) -> IcebergEventDestination:
        from support.iceberg import open_lake

        if killer:
            _watch(killer)
        # Many pages a minute: the newest snapshots stay, as of an hour of the feed.
        return open_lake(self._folder).destination(keep_snapshots_for=timedelta(0))

    def maintenance(self, killer: Killer | None = None) -> FeedMaintenance:
        from outbound_transfer.lake.iceberg_maintenance import IcebergFeedMaintenance

        return IcebergFeedMaintenance(self.open(killer))

    def found(self) -> dict[str, Any]:
        from support.iceberg import open_lake

        lake = open_lake(self._folder)
        if not lake.catalog.table_exists("lake.events"):
            return self.states[0]
        rows = lake.rows()
        return {
            "cursor": int(lake.table().properties.get("outbound-transfer.cursor.acme", 0)),
            "ids": sorted(int(row["event_id"]) for row in rows if row["event_id"]),
            "rejected": sum(row["event_id"] is None for row in rows),
        }

    def count(self) -> list[int]:
        ids, cursor = (found := self.found())["ids"], found["cursor"]
        return [len(ids), len(set(ids)), cursor]


def _watch(killer: Killer) -> None:
    """Make steps of the catalog's statements and commits, and of the files."""
    from pyarrow import parquet
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.io import pyarrow
    from pyiceberg.serializers import ToOutputFile
    from sqlalchemy.engine.default import DefaultDialect

    def watch(owner: Any, name: str, what: str) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: killer.step(what, lambda: inner(*args, **kwargs)))

    watch(DefaultDialect, "do_execute", "SQL statement")
    watch(DefaultDialect, "do_commit", "SQL commit")
    watch(pyarrow.PyArrowFile, "create", "open a new file")
    watch(parquet.ParquetWriter, "close", "write a data file")
    watch(AvroOutputFile, "__exit__", "write a manifest or a list of them")
    watch(ToOutputFile, "table_metadata", "write the metadata")
    watch(pyarrow.PyArrowFile, "open", "read a file")
    watch(pyarrow.PyArrowFileIO, "delete", "remove a file")
