"""The event feed in a real Iceberg table: a page is one commit, once, whoever commits beside it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Transaction
from pyiceberg.types import StringType

from outbound_transfer.lake import feed_table
from outbound_transfer.lake.iceberg import IcebergEventDestination
from outbound_transfer.lake.rows import SCHEMA
from outbound_transfer.store.errors import (
    CursorMoved,
    InvalidCursor,
    InvalidName,
    UnknownFeed,
    UnusableTable,
    WarehouseBusy,
)
from support import iceberg
from support.feed_pages import event, events, page
from support.iceberg import LINES, PAGES, InterruptedCatalog, Lake, at_once, open_lake

ALL = [f"e{number}" for number in range(LINES * PAGES)]
FEED = "outbound-transfer.feed.acme"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path)


@pytest.fixture
def feed(lake: Lake) -> IcebergEventDestination:
    destination = lake.destination()
    assert destination.get_or_create_cursor() == 0
    return destination


def problems(lake: Lake) -> list[str]:
    return list(lake.maintenance().find_problems())


def test_a_page_is_its_rows_its_cursor_and_one_snapshot(lake, feed) -> None:
    before = lake.snapshots()
    assert feed.load_page(page(0, *events(0, 3), b"junk", has_more=True)).new_events == 3
    assert feed.get_or_create_cursor() == 4
    found = [(row["event_id"], row["rejected_line"]) for row in lake.rows()]
    assert found == [("e0", None), ("e1", None), ("e2", None), (None, b"junk")]
    assert lake.snapshots() == before + 1
    with pytest.raises(CursorMoved):
        feed.load_page(page(0, *events(0, 3)))
    assert (len(lake.ids()), problems(lake)) == (3, [])
    fields = lake.table().schema().fields
    assert [(each.name, each.doc) for each in fields] == [
        (each.name, each.metadata[b"doc"].decode()) for each in SCHEMA
    ]
    assert [each.name for each in lake.table().spec().fields] == ["loaded_at_day"]


def test_a_poll_that_changes_nothing_makes_no_commit(lake, feed) -> None:
    feed.load_page(page(0, *events(0, 2), has_more=True))
    assert lake.maintenance().status().caught_up is False
    assert lake.destination().load_page(page(2)).new_events == 0
    assert lake.maintenance().status().caught_up is True
    before = lake.table().metadata_location
    assert lake.destination().load_page(page(2)).new_events == 0
    assert lake.table().metadata_location == before


def test_a_repeated_event_is_stored_once_for_each_page_and_each_content(lake, feed) -> None:
    assert feed.load_page(page(0, event(1), event(1), event(2))).new_events == 2
    assert feed.load_page(page(3, event(2), event(3), event(3, type="other"), event(3))).new_events == 3
    assert lake.ids() == ["e1", "e2", "e2", "e3", "e3"]
    assert problems(lake) == []


#: What follows its 16th character is a surrogate, which UTF-8 does not have.
UNBOUNDED = "x" * 15 + "\ud7ff and more"
HOSTILE = ["it's", 'say "hi"', "a.b.c", "ünï 🎉 日本", "x" * 250, "a = 'b' OR 1 = 1", "%s {0}", "back\\slash"]


def test_any_account_has_a_feed_of_its_own_and_any_text_is_stored(lake) -> None:
    for account in HOSTILE:
        other = f"{account[:-1]}!"
        values = dict.fromkeys(("event_id", "type", "timestamp", UNBOUNDED), UNBOUNDED) | {"data": {"a": account}}
        for name in (account, other):
            destination = lake.destination(name)
            assert destination.get_or_create_cursor() == 0
            destination.load_page(page(0, json.dumps(values, ensure_ascii=False).encode(), b"\xff" * 40))
        row = next(row for row in lake.rows() if row["account"] == account and row["event_id"])
        assert (row["event_id"], row["type"], json.loads(row["data"])) == (UNBOUNDED, UNBOUNDED, {"a": account})
        assert lake.maintenance(account).reset(0) == (2, 0)
        assert (lake.ids(account), lake.ids(other), lake.maintenance(other).read_cursor()) == ([], [UNBOUNDED], 2)


@pytest.mark.parametrize("account", ["", "x" * 251, "nul\0", "line\nbreak", "\ud800"])
def test_a_name_that_no_property_can_have_is_refused(lake, account: str) -> None:
    with pytest.raises(InvalidName):
        lake.destination(account)


def test_readers_that_race_create_one_table_and_load_every_page_once(lake) -> None:
    assert at_once(*[(iceberg.create, (lake.folder,))] * 6) == [0] * 6
    assert lake.catalog.list_tables("lake") == [("lake", "events")]
    assert sum(at_once(*[(iceberg.drain, (lake.folder,))] * 6)) == PAGES
    assert (lake.ids(), problems(lake)) == (ALL, [])


def test_a_compactor_and_an_expirer_beside_the_feed_lose_and_double_nothing(lake, feed) -> None:
    workers = [(work, (lake.folder,)) for work in (iceberg.drain, iceberg.compact, iceberg.expire)]
    loaded, compacted, expired = at_once(*workers)
    assert loaded == PAGES
    assert compacted + expired > 0
    assert (lake.ids(), problems(lake)) == (ALL, [])


def once(action: Callable[[], Any]) -> Callable[[], Any]:
    actions = [action]
    return lambda: actions.pop()() if actions else None


@pytest.mark.parametrize("lines", [events(0, 3), ()], ids=len)
def test_a_page_that_another_reader_has_loaded_is_not_loaded_again_though_the_table_says_so(lake, feed, lines) -> None:
    lake.set_property("commit.retry.num-retries", "4")
    overtake = once(lambda: feed.load_page(page(0, *lines, next_cursor=7)))
    with pytest.raises(CursorMoved):
        lake.destination(catalog=InterruptedCatalog(lake.catalog, before=overtake)).load_page(page(0, *lines))
    assert (len(lake.ids()), feed.get_or_create_cursor()) == (len(lines), 7)


def test_a_table_that_others_never_leave_alone_is_left_to_the_tasks_retries(lake, feed, monkeypatch) -> None:
    monkeypatch.setattr("outbound_transfer.lake.feed_table._MAX_BACKOFF", 0.0)
    overtaken = InterruptedCatalog(lake.catalog, before=lambda: lake.table().append(SCHEMA.empty_table()))
    with pytest.raises(WarehouseBusy, match="came first 30 times"):
        lake.destination(catalog=overtaken).load_page(page(0, *events(0, 3)))
    assert lake.rows() == []


def fail(error: Exception) -> Callable[..., Any]:
    def run(*_: object) -> None:
        raise error

    return run


ERRORS = [ConnectionError("reset"), CommitStateUnknownException("504"), CommitFailedException("409")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_commit_in_doubt_is_resolved_and_its_page_is_stored_once(lake, feed, error: Exception) -> None:
    interrupted = InterruptedCatalog(lake.catalog, after=once(fail(error)))
    assert lake.destination(catalog=interrupted).load_page(page(0, *events(0, 3))).new_events == 3
    assert (lake.ids(), feed.read_cursor()) == (["e0", "e1", "e2"], 3)


@pytest.mark.parametrize(
    ("applied", "found", "vanishes"), [("before", 0, False), ("before", 0, True), ("after", 3, True)]
)
def test_a_failed_commit_is_raised_and_the_next_run_loses_no_events(lake, feed, applied, found, vanishes) -> None:
    def interrupt() -> None:
        if vanishes:  # the catalog cannot be asked what became of the commit
            catalog.load_table = fail(OSError("no route"))  # type: ignore[method-assign]
        raise ConnectionError("reset")

    catalog = InterruptedCatalog(lake.catalog, **{applied: interrupt})
    with pytest.raises(OSError, match="no route" if vanishes else "reset"):
        lake.destination(catalog=catalog).load_page(page(0, *events(0, 3)))
    assert feed.get_or_create_cursor() == len(lake.rows()) == found
    feed.load_page(page(found, *events(found, found + 3)))
    assert lake.ids() == [f"e{number}" for number in range(found + 3)]


@pytest.fixture
def three_pages(lake: Lake, feed: IcebergEventDestination) -> Lake:
    """Pages after 0 (four lines), 4 and 8 (two lines and a gap of ten); the cursor is 20."""
    feed.load_page(page(0, *events(0, 3), b"junk", has_more=True))
    feed.load_page(page(4, *events(4, 8), has_more=True))
    feed.load_page(page(8, *events(8, 10), next_cursor=20))
    return lake


#: To: cursor afterwards, events left.
RESETS = {0: (0, 0), 3: (0, 0), 4: (4, 3), 7: (4, 3), 8: (8, 7), 19: (8, 7), 20: (20, 9), 1_000: (1_000, 9)}


@pytest.mark.parametrize(("to", "expected"), RESETS.items())
def test_a_reset_deletes_what_is_read_again_in_the_same_commit(three_pages, to: int, expected: tuple[int, int]) -> None:
    cursor, left = expected
    assert three_pages.maintenance().reset(to) == (20, cursor)
    assert (three_pages.maintenance().read_cursor(), len(three_pages.ids())) == (cursor, left)
    assert problems(three_pages) == []


def test_a_reset_that_was_decided_at_another_cursor_changes_nothing(three_pages, feed) -> None:
    load = once(lambda: feed.load_page(page(20, *events(20, 22))))
    maintenance = three_pages.maintenance()
    maintenance._table.catalog = InterruptedCatalog(three_pages.catalog, before=load)
    with pytest.raises(CursorMoved):
        maintenance.reset(0)
    assert (len(three_pages.ids()), feed.read_cursor()) == (11, 22)
    assert three_pages.maintenance().reset(4, expected=22) == (22, 4)
    with pytest.raises(CursorMoved, match="is no longer 22, it is 4"):
        feed.reset(8, expected=22)
    three_pages.set_property(FEED, "many")
    with pytest.raises(CursorMoved, match="it is not valid"):
        feed.reset(8, expected=22)
    assert len(three_pages.ids()) == 3


@pytest.mark.parametrize("feed_property", ["{", '{"cursor": "x"}', "null", '{"x":' + "[" * 50_000, None])
def test_a_state_that_is_none_is_refused_and_rebuilt_by_the_rows(three_pages, feed_property: str | None) -> None:
    """The newest page's end is not known then, so the page is deleted and read again."""
    if feed_property is None:
        three_pages.remove_property(FEED)
    else:
        three_pages.set_property(FEED, feed_property)
    for refused in (three_pages.destination().get_or_create_cursor, three_pages.maintenance().status):
        with pytest.raises(InvalidCursor, match="feed rebuild-cursor"):
            refused()
    assert three_pages.maintenance().rebuild_cursor() == (None, 8)
    assert (len(three_pages.ids()), problems(three_pages)) == (7, [])


def test_a_feed_that_was_never_read_is_an_error_and_makes_no_table(lake) -> None:
    maintenance = lake.maintenance()
    for command in (maintenance.read_cursor, maintenance.status, lambda: maintenance.reset(0)):
        with pytest.raises(UnknownFeed, match="no feed has been read here yet"):
            command()
    assert lake.catalog.list_tables("lake") == []
    lake.destination("other").get_or_create_cursor()
    with pytest.raises(UnknownFeed, match="it has: other"):
        maintenance.rebuild_cursor()


def test_verify_says_what_others_added(three_pages) -> None:
    three_pages.table().append(pa.Table.from_pylist([three_pages.rows()[0] | {"cursor_from": 20}], schema=SCHEMA))
    assert problems(three_pages) == [
        "1 rows are of pages from the cursor 20 on, which the next run loads: `feed reset --to 20` deletes them first"
    ]
    assert three_pages.maintenance().reset(20) == (20, 20)
    assert problems(three_pages) == []


def roll_back(lake: Lake) -> None:
    table = lake.table()
    table.manage_snapshots().set_current_snapshot(snapshot_id=table.current_snapshot().parent_snapshot_id).commit()


def roll_back_a_reset(lake: Lake) -> None:
    lake.maintenance().reset(4)
    first = next(each for each in lake.table().snapshots() if each.parent_snapshot_id is None)
    lake.table().manage_snapshots().set_current_snapshot(snapshot_id=first.snapshot_id).commit()


def copy_its_properties(lake: Lake) -> None:
    table = lake.table()
    lake.catalog.drop_table("lake.events")
    lake.catalog.create_table("lake.events", schema=table.schema(), properties=table.properties)


def load_others(lake: Lake, pages: int) -> None:
    other = lake.destination("other")
    for number in range(pages):
        other.load_page(page(other.get_or_create_cursor(), event(number)))


@pytest.mark.parametrize(
    ("change", "others", "cursor"),
    [(roll_back, 0, 4), (roll_back, 2, 4), (roll_back_a_reset, 0, 0), (copy_its_properties, 0, 0)],
)
def test_a_table_of_another_time_is_not_loaded_before_its_cursor_is_rebuilt(
    three_pages, feed, change: Callable[[Lake], None], others: int, cursor: int
) -> None:
    change(three_pages)
    load_others(three_pages, others)
    for load in (feed.get_or_create_cursor, lambda: feed.load_page(page(20, event(20))), lambda: problems(three_pages)):
        with pytest.raises(InvalidCursor, match=r"was rolled back or replaced.*feed rebuild-cursor"):
            load()
    assert feed.rebuild_cursor() == (None, cursor)
    assert feed.get_or_create_cursor() == cursor


def test_deleted_rows_or_expired_successors_of_a_tag_are_not_taken_for_a_rollback(three_pages, feed) -> None:
    tagged = three_pages.table().current_snapshot().snapshot_id
    three_pages.table().manage_snapshots().create_tag(tagged, "kept").commit()
    load_others(three_pages, 4)
    kept = {tagged, three_pages.table().current_snapshot().snapshot_id}
    old = [each.snapshot_id for each in three_pages.table().snapshots() if each.snapshot_id not in kept]
    three_pages.table().maintenance.expire_snapshots().by_ids(old).commit()
    assert feed.get_or_create_cursor() == 20
    three_pages.table().delete("account = 'acme'")
    assert feed.get_or_create_cursor() == 20


def test_another_pyiceberg_is_refused_at_import(monkeypatch) -> None:
    def init(transaction: Any) -> None:
        transaction._producers = []

    monkeypatch.setattr(Transaction, "__init__", init)
    with pytest.raises(ImportError, match="pyiceberg>=0.12,<0.13"):
        importlib.reload(feed_table)


def test_old_snapshots_expire_and_those_that_readers_may_use_stay(lake) -> None:
    age = [timedelta(0)]
    destination = lake.destination(clock=lambda: datetime.now(UTC) + age[0], keep_snapshots_for=timedelta(hours=1))
    destination.get_or_create_cursor()
    for number in range(4):
        destination.load_page(page(number, event(number)))
        if number == 1:
            lake.table().manage_snapshots().create_tag(lake.table().current_snapshot().snapshot_id, "kept").commit()
    assert lake.snapshots() == 5
    age[0] = timedelta(hours=2)
    destination.load_page(page(4, event(4)))
    assert lake.snapshots() == 3  # the newest when the page was loaded, the page, and the tag
    assert (len(lake.ids()), destination.get_or_create_cursor()) == (5, 5)


def test_an_expiry_that_another_one_overtakes_harms_no_page(lake, feed) -> None:
    for number in range(3):
        feed.load_page(page(number, event(number)))
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    expire = once(lambda: lake.table().maintenance.expire_snapshots().older_than(tomorrow).commit())
    overtaken = InterruptedCatalog(lake.catalog, before=expire)
    lake.destination(catalog=overtaken, keep_snapshots_for=timedelta(days=-1)).load_page(page(3, event(3)))
    assert (lake.ids(), lake.snapshots()) == (["e0", "e1", "e2", "e3"], 2)


def test_a_table_that_cannot_be_used_is_refused_in_words(lake, feed) -> None:
    feed.load_page(page(0, *events(0, 2)))
    schema, rows = lake.table().schema(), lake.table().scan().to_arrow()
    with lake.table().update_schema() as update:
        update.add_column("remark", StringType())
    assert feed.load_page(page(2, *events(2, 4))).new_events == 2, "another column does no harm"
    with lake.table().update_schema() as update:
        update.delete_column("raw")
    with pytest.raises(UnusableTable, match="raw"):
        feed.load_page(page(4, *events(4, 6)))

    def replace(schema: Any) -> Any:
        lake.catalog.drop_table("lake.events")
        return lake.catalog.create_table("lake.events", schema=schema)

    replace(schema).append(rows)
    with pytest.raises(InvalidCursor, match="has events of acme but no cursor"):
        feed.get_or_create_cursor()
    replace(pa.schema([pa.field("account", pa.int64()), pa.field("more", pa.string(), nullable=False)]))
    with pytest.raises(UnusableTable, match=r"the table lake\.events is not as this package creates it"):
        feed.get_or_create_cursor()
    lake.catalog.drop_table("lake.events")
    lake.catalog.drop_namespace("lake")
    with pytest.raises(UnusableTable, match="the namespace lake does not exist in the catalog: create it first"):
        feed.get_or_create_cursor()
