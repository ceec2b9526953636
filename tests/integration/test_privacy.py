"""Personal data: a person is found, erased everywhere and never brought back; which columns have people; age."""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from outbound_transfer.client.events import Page
from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.lake.iceberg_personal_data import IcebergPersonalData
from outbound_transfer.lake.object_personal_data import ObjectPersonalData
from outbound_transfer.store.personal_data import AddressSearch
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.destination import EventDestination, FeedMaintenance
from outbound_transfer.warehouse.errors import RowsRefused, WarehouseBusy
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.maintenance import SqlFeedMaintenance
from outbound_transfer.warehouse.personal_data import PersonalData, SqlPersonalData
from outbound_transfer.warehouse.transfers import TransferTables
from support.feed_pages import event, page
from support.iceberg import TABLE, open_lake
from support.object_folders import destination, local_store, maintenance, s3_store
from support.object_storage import Bucket, running_s3

ADDRESS = "quasimodo+tag@example.com"
SEARCH = AddressSearch(ADDRESS)
#: In any form that files are searched for.
TRACE = re.compile(rb"\bquasimodo(?:\+|%2b|\\u002b)tag(?:@|%40|\\+u0040)example\.com\b(?!\.au)", re.IGNORECASE)
OTHERS = ["esquasimodo+tag@example.com", "quasimodo@example.com", "quasimodo+tag@example.com.au"]

LINES = (
    event(0, data={"recipient": {"email": "Quasimodo+Tag@EXAMPLE.com", "name": "Quasi M."}, "n": 1.50}),
    event(1, data={"text": "from quasimodo+tag@example.com."}),
    rb'{"event_id":"e2","type":"t","data":{"email":"quasimodo+tag\u0040example.com"},"by":"<quasimodo+tag@example.com>"}',
    rb'{"event_id":"e3","type":"t","data":{"x":"\ud800 quasimodo\u002btag@example.com","x":2}}',
    rb'{"event_id":"e4","type":"t","data":{"url":"https://x/?to=quasimodo%2Btag%40example.com&y"}}',
    event(5, data={"json": json.dumps({"email": ADDRESS, "name": "Quasi M."}).replace("@", "\\u0040")}),
    b"(erased) junk: quasimodo+tag@example.com",
    event(7, data={"file": {"name": "Quasi M."}, "to": ["bob@example.com"]}),
)
#: With a page after it, so that a retention has something to delete, and a rebuild something to read again.
PAGES = (
    page(0, *LINES, has_more=True),
    page(8, event(8, data={"others": OTHERS}), has_more=True),
    page(9, event(9, data={"to": ADDRESS})),
)
CHANGED = {"events": 7, "rejected_lines": 1}


class Destination(NamedTuple):
    """A destination that is opened anew each time, and all content of its files, unpacked where it is packed."""

    feed: Callable[[], EventDestination]
    maintenance: Callable[[], FeedMaintenance]
    personal: PersonalData
    read_files: Callable[[], bytes]

    def load(self, *pages: Page) -> None:
        for each in pages:
            feed = self.feed()
            assert feed.get_or_create_cursor() == each.cursor
            try:
                feed.load_page(each)
            except RowsRefused as refused:
                feed.load_page(refused.page)

    def read_again(self, *pages: Page) -> None:
        cursor = self.maintenance().read_cursor()
        self.load(*(each for each in pages if each.cursor >= cursor))
        assert self.personal.erase(SEARCH) == {}, "a database rolls rows back, which leaves them in its files"
        self.check_gone()

    def check_gone(self) -> None:
        assert TRACE.findall(self.read_files()) == []
        assert self.personal.find(SEARCH) == {}
        assert list(self.maintenance().find_problems()) == []


def _content(*folders: Path) -> bytes:
    files = [each for folder in folders for each in sorted(folder.rglob("*")) if each.is_file()]
    return b"\n".join(_unpacked(file.read_bytes()) for file in files)


def _unpacked(content: bytes) -> bytes:
    if not content.startswith(b"PAR1"):
        return content
    rows = pq.read_table(io.BytesIO(content)).to_pylist()
    return b"\n".join(
        value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row.values()
    )


def _sql_destination(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Destination:
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
            tx.execute(
                "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
            )
            folder, number = tx.fetchone()
            return _content(Path(folder, "base", str(number)))

    def feed() -> EventStore:
        return EventStore(warehouse, "acme")

    return Destination(feed, lambda: SqlFeedMaintenance(feed()), SqlPersonalData(warehouse, kind), read_files)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as address:
        yield address


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "mysqlclient", "iceberg", "objects", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Destination]:
    kind = request.param
    if kind == "iceberg":
        lake = open_lake(tmp_path)
        personal: PersonalData = IcebergPersonalData(lake.catalog, TABLE)
        yield Destination(lake.destination, lake.maintenance, personal, lambda: _content(tmp_path))
    elif kind in ("objects", "s3"):
        name = f"privacy-{uuid.uuid4().hex}"
        bucket = Bucket(request.getfixturevalue("s3"), name) if kind == "s3" else None
        store = s3_store(request.getfixturevalue("s3"), name) if bucket else local_store(tmp_path / "lake")

        def read_files() -> bytes:
            names = store.fs.find(store.root)
            return b"\n".join(_unpacked(store.fs.cat_file(name)) for name in names)

        yield Destination(lambda: destination(store), lambda: maintenance(store), ObjectPersonalData(store), read_files)
        if bucket:
            bucket.close()
    else:
        yield _sql_destination(request, kind, tmp_path)


def test_who_is_erased_is_found_nowhere_and_what_is_read_again_is_known(location: Destination) -> None:
    location.load(*PAGES)
    before, rows = location.maintenance().status(), location.personal.find(SEARCH)
    assert {table: len(found) for table, found in rows.items()} in (CHANGED, {"events": sum(CHANGED.values())})
    assert TRACE.search(location.read_files())

    assert location.personal.erase(SEARCH) == {table: len(found) for table, found in rows.items()}

    location.check_gone()
    assert location.personal.erase(SEARCH) == {}
    for other in OTHERS:
        assert location.personal.find(AddressSearch(other)), other
    assert "Quasi M." in str(location.personal.find(AddressSearch("bob@example.com"))), "of a file, not of the person"
    assert location.maintenance().status() == before, "nor did the cursor move"
    # The service still has the person: pages come again, also cut otherwise.
    location.maintenance().rebuild_cursor()
    location.read_again(*PAGES)
    for pages in (PAGES, (page(0, *LINES[:4], has_more=True), page(4, *LINES[4:], has_more=True), *PAGES[1:])):
        location.maintenance().reset(0)
        location.read_again(*pages)
        assert (location.maintenance().status().events, location.maintenance().status().rejected) == (9, 1)
    location.load(page(10, event(10, data={"to": ADDRESS})))
    assert location.personal.erase(SEARCH) == {"events": 1}, "what is new is new, even if its content is not"
    location.check_gone()


def test_another_event_of_an_erased_id_is_another(location: Destination) -> None:
    """An id is no identity: what is sent to somebody else is not the erased event."""
    first, second = event(0, data={"to": ADDRESS}), event(0, data={"to": "bob@example.com"})
    pages = page(0, first, has_more=True), page(1, second, has_more=True), page(2, event(2))
    location.load(*pages)
    location.personal.erase(SEARCH)
    location.maintenance().reset(0)
    location.load(*pages)
    assert location.personal.find(AddressSearch("bob@example.com"))
    assert location.personal.find(SEARCH) == {}


def test_an_interrupted_erasure_is_finished_by_the_next(location: Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    location.load(*PAGES)
    with monkeypatch.context() as broken:
        for name in (
            "warehouse.database.Warehouse.compact",
            "lake.iceberg_personal_data.IcebergPersonalData._purge",
            "lake.object_store.ObjectStore.replace",
            "lake.object_store.LocalStore.replace",
        ):
            broken.setattr(f"outbound_transfer.{name}", Mock(side_effect=InterruptedError))
        with pytest.raises(InterruptedError):
            location.personal.erase(SEARCH)
    location.personal.erase(SEARCH)
    location.check_gone()


def test_what_an_erasure_overtakes_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure deletes files that a reset reads."""
    lake = open_lake(tmp_path)
    lake.destination().get_or_create_cursor()
    lake.destination().load_page(page(0, event(0, data={"to": ADDRESS}), event(1)))
    reset, erasures = lake.maintenance(), []
    read = reset._read

    def interrupted(table: Any, *columns: str, **options: Any) -> Any:
        if columns == ("cursor_from",) and not erasures:
            erasures.append(IcebergPersonalData(lake.catalog, TABLE).erase(SEARCH))
        return read(table, *columns, **options)

    monkeypatch.setattr(reset, "_read", interrupted)
    assert reset.reset(0) == (2, 0)
    assert erasures == [{"events": 1}]


def test_a_file_of_duckdb_is_not_written_anew_while_another_thread_uses_it(
    hook_of: Any, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other commits would be in the old file."""
    warehouse, feed = Warehouse(hook_of("duckdb")), EventStore(Warehouse(hook_of("duckdb")), "acme")
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(0, data={"to": ADDRESS})))
    personal = SqlPersonalData(warehouse, "duckdb")
    with closing(warehouse.connect()), pytest.raises(WarehouseBusy, match="another thread"):
        personal.erase(SEARCH)
    waiting = Thread(target=lambda: feed.load_page(page(1, event(1))))

    def overtaken(*_: Any) -> None:
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()

    monkeypatch.setattr("shutil.copymode", overtaken)
    assert personal.erase(SEARCH) == {}
    waiting.join()
    assert feed.read_cursor() == 2
    assert not TRACE.search(_content(memory))


@pytest.mark.parametrize("kind", ["psycopg", "mysqlclient", "sqlite"])
def test_an_erasure_that_a_reader_holds_up_says_so(hook_of: Any, kind: str) -> None:
    warehouse = Warehouse(hook_of(kind), timeout=1)
    feed, personal = EventStore(warehouse, "acme"), SqlPersonalData(warehouse, kind)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(0, data={"to": ADDRESS})))
    with closing(hook_of(kind).get_conn()) as reader, closing(reader.cursor()) as tx:
        tx.execute("BEGIN")
        tx.execute("SELECT count(*) FROM outbound_transfer_events")
        tx.fetchall()
        with pytest.raises(Exception, match="lock|old rows"):
            personal.erase(SEARCH)
    assert personal.erase(SEARCH) == {}


def test_pages_of_objects_are_changed_by_one_command_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure would put a page back that a reset has deleted, or that another erasure has replaced."""
    store, refused = local_store(tmp_path / "lake"), []
    feed, personal, replace = destination(store), ObjectPersonalData(store), store.replace
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(0, data={"to": ADDRESS})))

    def interrupted(name: str, content: bytes) -> None:
        for other in (lambda: maintenance(store).reset(0), lambda: personal.erase(SEARCH)):
            with pytest.raises(WarehouseBusy, match="delete .*lock"):
                other()
            refused.append(other)
        replace(name, content)

    monkeypatch.setattr(store, "replace", interrupted)
    assert personal.erase(SEARCH) == {"events": 1}
    assert len(refused) == 2
    maintenance(store).reset(0)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "psycopg", "mysqlclient"])
def test_what_is_old_goes_and_the_feed_stands_where_it_did(hook_of: Any, kind: str) -> None:
    warehouse, now = Warehouse(hook_of(kind)), datetime.now(UTC)
    store, personal = EventStore(warehouse, "acme"), SqlPersonalData(warehouse, kind)
    other = EventStore(warehouse, "other")
    for feed, pages in ((store, PAGES), (other, (page(0, event(0)),))):
        for each in pages:
            feed.get_or_create_cursor()
            feed.load_page(each)
        for _ in range(2):
            feed.load_page(page(each.next_cursor))
    for status in ("complete", "pending"):
        sent = Transfer(status, status, "s", recipients=(Recipient(ADDRESS),), sent_at="2020-01-01T00:00:00Z")
        for account in ("acme", "other"):
            tables = TransferTables(warehouse, account, "conn")
            tables.sync_state()
            tables.save([sent], now)
    before = SqlFeedMaintenance(store).status()
    assert personal.delete_before(datetime(2019, 1, 1, tzinfo=UTC), dry_run=False) == {}
    counts = personal.delete_before(now + timedelta(days=1), dry_run=True)
    assert personal.delete_before(now + timedelta(days=1), dry_run=False) == counts == {
        "events": 8, "rejected_lines": 1, "feed_polls": 2, "recipients": 2,
    }  # fmt: skip
    assert personal.delete_before(now + timedelta(days=1), dry_run=False) == {}
    after = SqlFeedMaintenance(store).status()
    assert (after.caught_up, after.cursor) == (before.caught_up, before.cursor) == (True, 10)
    for feed in (store, other):
        maintenance = SqlFeedMaintenance(feed)
        assert list(maintenance.find_problems()) == []
        cursor = maintenance.read_cursor()
        assert maintenance.rebuild_cursor() == (cursor, cursor - 1), "the newest page is there"
    assert {row["transfer_id"] for row in personal.find(SEARCH)["recipients"]} == {"pending"}
