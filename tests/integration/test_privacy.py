"""Personal data: a person is found, erased everywhere and never brought back; which columns have people; age."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.cli.console import main
from outbound_transfer.lake.iceberg_personal import IcebergPersonalData
from outbound_transfer.lake.object_personal import ObjectPersonalData
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.events import Page
from outbound_transfer.protocol.personal_data import ERASED, only, redact
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.destination import EventDestination, FeedMaintenance
from outbound_transfer.warehouse.errors import InvalidPrivacy
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.maintenance import SqlFeedMaintenance
from outbound_transfer.warehouse.personal_rows import SqlPersonalData
from outbound_transfer.warehouse.privacy import PersonalData
from outbound_transfer.warehouse.tables import PERSONAL_COLUMNS, TABLES
from support.feed_pages import event, page
from support.iceberg import TABLE, open_lake
from support.object_folders import destination, local_store, maintenance, s3_store
from support.object_storage import Bucket, running_s3

ADDRESS = "quasimodo+tag@example.com"
#: In any form that files are searched for.
TRACE = re.compile(rb"\bquasimodo(?:\+|%2b|\\u002b)tag(?:@|%40|\\+u0040)example\.com\b(?!\.au)", re.IGNORECASE)
OTHERS = ["esquasimodo+tag@example.com", "quasimodo@example.com", "quasimodo+tag@example.com.au"]

LINES = (
    event(0, data={"recipient": {"email": "Quasimodo+Tag@EXAMPLE.com", "name": "Quasi M."}, "n": 1.50}),
    event(1, data={"others": OTHERS, "text": "from quasimodo+tag@example.com."}),
    rb'{"event_id":"e2","type":"t","data":{"email":"quasimodo+tag\u0040example.com"},"by":"<quasimodo+tag@example.com>"}',
    rb'{"event_id":"e3","type":"t","data":{"x":"\ud800 quasimodo\u002btag@example.com","x":2}}',
    rb'{"event_id":"e4","type":"t","data":{"url":"https://x/?to=quasimodo%2Btag%40example.com&y"}}',
    event(5, data={"json": json.dumps({"email": ADDRESS, "name": "Quasi M."}).replace("@", "\\u0040")}),
    b"junk: quasimodo+tag@example.com",
    event(7, data={"file": {"name": "Quasi M."}, "to": ["bob@example.com"]}),
)
#: With a page after it, so that a retention has something to delete, and a rebuild something to read again.
PAGES = (page(0, *LINES, has_more=True), page(8, event(8), has_more=True), page(9, event(9, data={"to": ADDRESS})))
CHANGED = {"events": 7, "rejected_lines": 1}


class Place(NamedTuple):
    """A destination that is opened anew each time, and all content of its files, unpacked where it is packed."""

    feed: Callable[[], EventDestination]
    maintenance: Callable[[], FeedMaintenance]
    personal: PersonalData
    read_files: Callable[[], bytes]

    def load(self, *pages: Page) -> None:
        for each in pages:
            feed = self.feed()
            assert feed.get_or_create_cursor() == each.cursor
            feed.load_page(each)

    def check_gone(self) -> None:
        assert TRACE.findall(self.read_files()) == []
        assert self.personal.find(ADDRESS) == {}
        assert list(self.maintenance().find_problems()) == []


def _content(*folders: Path) -> bytes:
    files = [each for folder in folders for each in sorted(folder.rglob("*")) if each.is_file()]
    return b"\n".join(_unpacked(file.read_bytes()) for file in files)


def _unpacked(content: bytes) -> bytes:
    if not content.startswith(b"PAR1"):
        return content
    rows = pq.read_table(io.BytesIO(content)).to_pylist()
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row.values())


def _sql_place(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Place:
    hook = request.getfixturevalue("hook_of")(kind)
    warehouse = Warehouse(hook)

    def read_files() -> bytes:
        if kind in ("sqlite", "duckdb"):
            return _content(tmp_path if kind == "sqlite" else request.getfixturevalue("memory"))
        with closing(hook.get_conn()) as connection, closing(connection.cursor()) as tx:
            if kind == "mysqlclient":  # the pages of its tables that are not in their files yet
                tx.execute("FLUSH TABLES outbound_transfer_events, outbound_transfer_rejected_lines FOR EXPORT")
                tx.execute("SELECT @@datadir, database()")
                return _content(Path(*tx.fetchone()))
            connection.autocommit = True
            tx.execute("CHECKPOINT")
            tx.execute("SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()")
            folder, number = tx.fetchone()
            return _content(Path(folder, "base", str(number)))

    def feed() -> EventStore:
        return EventStore(warehouse, "acme")

    return Place(feed, lambda: SqlFeedMaintenance(feed()), SqlPersonalData(warehouse, kind), read_files)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as address:
        yield address


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "mysqlclient", "iceberg", "objects", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = request.param
    if kind == "iceberg":
        lake = open_lake(tmp_path)
        personal: PersonalData = IcebergPersonalData(lake.catalog, TABLE)
        yield Place(lake.destination, lake.maintenance, personal, lambda: _content(tmp_path))
    elif kind in ("objects", "s3"):
        bucket = Bucket(request.getfixturevalue("s3"), "privacy") if kind == "s3" else None
        store = s3_store(request.getfixturevalue("s3"), "privacy") if bucket else local_store(tmp_path / "lake")

        def read_files() -> bytes:
            names = store.fs.find(store.root)
            return b"\n".join(_unpacked(store.fs.cat_file(name)) for name in names)

        yield Place(lambda: destination(store), lambda: maintenance(store), ObjectPersonalData(store), read_files)
        if bucket:
            bucket.close()
    else:
        yield _sql_place(request, kind, tmp_path)


def test_who_is_erased_is_found_nowhere_and_never_comes_back(place: Place) -> None:
    place.load(*PAGES)
    before, rows = place.maintenance().status(), place.personal.find(ADDRESS)
    assert {table: len(found) for table, found in rows.items()} in (CHANGED, {"events": sum(CHANGED.values())})
    shown = json.dumps(rows, default=str)
    assert "bob@example.com" not in shown
    assert not any(f'"{other}' in shown for other in OTHERS), "others are not shown to a person"
    assert TRACE.search(place.read_files())

    assert place.personal.erase(ADDRESS) == {table: len(found) for table, found in rows.items()}

    place.check_gone()
    assert place.personal.erase(ADDRESS) == {}
    for other in OTHERS:
        assert place.personal.find(other), other
    assert "Quasi M." in str(place.personal.find("bob@example.com")), "of a file, not of the person"
    assert place.maintenance().status() == before, "nor did the cursor move"
    # The service still has the person: pages come again.
    place.maintenance().rebuild_cursor()
    if (cursor := place.maintenance().read_cursor()) < 10:
        place.load(*(each for each in PAGES if each.cursor >= cursor))
    place.check_gone()
    place.maintenance().reset(0)
    place.load(*PAGES)
    place.check_gone()
    assert (place.maintenance().status().events, place.maintenance().status().rejected) == (9, 1)
    place.load(page(10, event(10, data={"to": [ADDRESS, *OTHERS]})))
    place.check_gone()


def test_an_interrupted_erasure_is_finished_by_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.load(*PAGES)
    steps = {
        "outbound_transfer.warehouse.database.Warehouse.compact": OSError,
        "outbound_transfer.lake.iceberg_personal.IcebergPersonalData._purge": OSError,
        "outbound_transfer.lake.objects.ObjectEventDestination.redact_page": OSError,
    }
    with monkeypatch.context() as broken:
        for name, error in steps.items():
            broken.setattr(name, lambda *_, **__: (_ for _ in ()).throw(OSError()))
        with pytest.raises(OSError):
            place.personal.erase(ADDRESS)
    place.personal.erase(ADDRESS)
    place.check_gone()


def test_what_is_old_goes_and_the_feed_stands_where_it_did(place: Place) -> None:
    place.load(*PAGES)
    before, later = place.maintenance().read_cursor(), datetime.now(UTC) + timedelta(days=1)
    assert place.personal.delete_before(datetime.now(UTC) - timedelta(days=1), is_rehearsal=False) == {}
    counts = place.personal.delete_before(later, is_rehearsal=True)
    assert place.personal.delete_before(later, is_rehearsal=False) == counts
    assert counts["events"] >= 8
    assert place.personal.delete_before(later, is_rehearsal=False) == {}
    assert list(place.maintenance().find_problems()) == []
    assert place.maintenance().read_cursor() == before == 10
    place.maintenance().rebuild_cursor()
    cursor = place.maintenance().read_cursor()
    place.load(*(each for each in (*PAGES, page(10, event(10))) if each.cursor >= cursor))
    assert list(place.maintenance().find_problems()) == []
    assert place.personal.find("bob@example.com") == {}
    assert place.personal.find(ADDRESS)["events"], "of the newest page"
