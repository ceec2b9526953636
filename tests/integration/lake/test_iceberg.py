"""The event feed in a real Iceberg table: a page is one commit, once, whoever commits beside it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Transaction

from outbound_transfer.lake import feed_table
from outbound_transfer.lake.feed_table import FeedState, read_state
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

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ALL = [f"e{number}" for number in range(LINES * PAGES)]
FEED = "outbound-transfer.feed.acme"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path)


def state_of(lake: Lake, account: str = "acme") -> FeedState:
    state = read_state(lake.table().metadata, account)
    assert state is not None
    return state


def problems(lake: Lake) -> list[str]:
    return list(lake.maintenance().find_problems())


# -------------------------------------------------------------------------------------------------------- loading


def test_a_page_is_its_rows_its_cursor_and_one_snapshot(lake) -> None:
    destination = lake.destination()
    assert destination.get_or_create_cursor() == 0
    before = lake.snapshots()
    assert destination.load_page(page(0, *events(0, 3), b"junk", has_more=True)).new_events == 3
    assert destination.get_or_create_cursor() == 4
    assert [(row["event_id"], row["rejected_line"]) for row in lake.rows()] == [
        ("e0", None),
        ("e1", None),
        ("e2", None),
        (None, b"junk"),
    ]
    assert lake.snapshots() == before + 1
    with pytest.raises(CursorMoved):
        destination.load_page(page(0, *events(0, 3)))
    assert (len(lake.ids()), problems(lake)) == (3, [])


def test_a_table_has_a_comment_for_each_column_and_its_days_as_partitions(lake) -> None:
    lake.destination().get_or_create_cursor()
    table = lake.table()
    assert [field.name for field in table.schema().fields] == SCHEMA.names
    assert [field.doc for field in table.schema().fields] == [field.metadata[b"doc"].decode() for field in SCHEMA]
    assert [field.name for field in table.spec().fields] == ["loaded_at_day"]
    assert table.format_version == 2


def test_a_page_without_lines_moves_the_cursor_and_excludes_other_readers(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    rival = lake.destination()
    overtaken = lake.destination(
        catalog=InterruptedCatalog(lake.catalog, before=once(lambda: rival.load_page(page(0, next_cursor=7))))
    )
    with pytest.raises(CursorMoved):
        overtaken.load_page(page(0, next_cursor=9))
    assert (destination.get_or_create_cursor(), lake.rows()) == (7, [])


def test_a_poll_that_changes_nothing_is_no_commit(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    destination.load_page(page(0, *events(0, 2), has_more=True))
    assert lake.maintenance().status().caught_up is False
    assert lake.destination().load_page(page(2)).new_events == 0
    assert lake.maintenance().status().caught_up is True
    before = lake.table().metadata_location
    assert lake.destination().load_page(page(2)).new_events == 0
    assert lake.table().metadata_location == before
    with pytest.raises(CursorMoved):
        destination.load_page(page(0))


def test_an_event_twice_in_a_page_is_there_once_and_on_two_pages_twice(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    assert destination.load_page(page(0, event(1), event(1), event(2))).new_events == 2
    assert destination.load_page(page(3, event(2), event(3))).new_events == 2
    assert lake.ids() == ["e1", "e2", "e2", "e3"]
    assert problems(lake) == []


def test_events_of_one_id_and_other_content_are_all_there(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    assert destination.load_page(page(0, event(1), event(1, type="other"), event(1), event(2))).new_events == 3
    assert lake.ids() == ["e1", "e1", "e2"]


HOSTILE = ["it's", 'say "hi"', "a.b.c", "ünï 🎉 日本", "x" * 250, "a = 'b' OR 1 = 1", "%s {0}", "back\\slash"]


@pytest.mark.parametrize("account", HOSTILE)
def test_any_account_has_a_feed_of_its_own(lake, account: str) -> None:
    for name in (account, f"{account[:-1]}!"):
        destination = lake.destination(name)
        assert destination.get_or_create_cursor() == 0
        destination.load_page(page(0, *events(0, 2), b"junk"))
    assert lake.maintenance(account).reset(0) == (3, 0)
    assert lake.ids(account) == []
    assert (lake.ids(f"{account[:-1]}!"), state_of(lake, f"{account[:-1]}!").cursor) == (["e0", "e1"], 3)


@pytest.mark.parametrize("account", ["", "x" * 251, "nul\0", "line\nbreak", "\ud800"])
def test_a_name_that_no_property_can_have_is_refused(lake, account: str) -> None:
    with pytest.raises(InvalidName):
        lake.destination(account)


@pytest.mark.parametrize("value", ["'); DROP TABLE x; --", "\\u0000 \\ud800", "日本 🎉", '{"a": "\\n"}'])
def test_values_are_read_back_as_they_were_sent(lake, value: str) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    line = json.dumps({"event_id": "1", "type": value, "data": {"v": value}}).encode()
    destination.load_page(page(0, line))
    (row,) = lake.rows()
    data = json.loads(row["data"]) if row["data"] else json.loads(row["raw"])["data"]
    assert (row["type"], data) == (value, {"v": value})


# ------------------------------------------------------------------------------------------------- reading it back


#: What follows its 16th character is a surrogate, which UTF-8 does not have.
UNBOUNDED = "x" * 15 + "\ud7ff and more"


def test_a_text_without_a_bound_is_stored_in_any_column(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    values = {"event_id": UNBOUNDED, "type": UNBOUNDED, "timestamp": UNBOUNDED, "data": {"a": UNBOUNDED}, UNBOUNDED: 1}
    destination.load_page(page(0, json.dumps(values, ensure_ascii=False).encode(), b"\xff" * 40))
    assert (lake.rows()[0]["event_id"], lake.rows()[0]["type"]) == (UNBOUNDED, UNBOUNDED)
    assert lake.maintenance().reset(0) == (2, 0)


def test_duckdb_reads_the_rows_from_the_data_files_and_from_arrow(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    destination.load_page(page(0, *events(0, 3), b"junk"))
    destination.load_page(page(4, *events(3, 5)))
    files = [task.file.file_path.removeprefix("file://") for task in lake.table().scan().plan_files()]
    columns = ("event_id", "rejected_line", "cursor_from", "line_number")
    query = f"SELECT {', '.join(columns)} FROM {{}} ORDER BY cursor_from, line_number"
    with duckdb.connect() as connection:
        from_files = connection.execute(query.format(f"read_parquet({files})")).fetchall()
        connection.register("arrow_rows", lake.table().scan().to_arrow())
        from_arrow = connection.execute(query.format("arrow_rows")).fetchall()
    assert from_files == from_arrow == [tuple(row[name] for name in columns) for row in lake.rows()]
    assert len(from_files) == 6


# ------------------------------------------------------------------------------------------------ others at the table


@pytest.mark.parametrize("readers", [2, 6])
def test_readers_that_race_load_every_page_once(lake, readers: int) -> None:
    loaded = at_once(*[(iceberg.drain, (lake.folder,))] * readers)
    assert sum(loaded) == PAGES
    assert (lake.ids(), problems(lake)) == (ALL, [])


def test_first_runs_at_once_create_one_table(lake) -> None:
    assert at_once(*[(iceberg.create, (lake.folder,))] * 6) == [0] * 6
    assert lake.catalog.list_tables("lake") == [("lake", "events")]
    assert state_of(lake).cursor == 0


def test_a_compactor_and_an_expirer_beside_the_feed_lose_and_double_nothing(lake) -> None:
    create, folder = lake.destination().get_or_create_cursor, (lake.folder,)
    create()
    loaded, compacted, expired = at_once((iceberg.drain, folder), (iceberg.compact, folder), (iceberg.expire, folder))
    assert loaded == PAGES
    assert compacted + expired > 0
    assert (lake.ids(), problems(lake)) == (ALL, [])


def once(action: Callable[[], Any]) -> Callable[[], Any]:
    """What runs an action the first time only."""
    actions = [action]
    return lambda: actions.pop()() if actions else None


def test_a_lost_append_is_not_repeated_though_the_table_says_so(lake) -> None:
    rival = lake.destination()
    rival.get_or_create_cursor()
    lake.set_property("commit.retry.num-retries", "4")
    overtake = once(lambda: rival.load_page(page(0, *events(0, 3))))
    overtaken = lake.destination(catalog=InterruptedCatalog(lake.catalog, before=overtake))
    with pytest.raises(CursorMoved):
        overtaken.load_page(page(0, *events(0, 3)))
    assert lake.ids() == ["e0", "e1", "e2"]


def test_a_page_that_a_compactor_overtakes_is_committed_after_it(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    destination.load_page(page(0, *events(0, 3)))
    rewrite = once(lambda: lake.table().overwrite(lake.table().scan().to_arrow()))
    overtaken = lake.destination(catalog=InterruptedCatalog(lake.catalog, before=rewrite))
    assert overtaken.load_page(page(3, *events(3, 5))).new_events == 2
    assert lake.ids() == ["e0", "e1", "e2", "e3", "e4"]


def test_a_table_that_others_never_leave_alone_is_left_to_the_tasks_retries(lake, monkeypatch) -> None:
    monkeypatch.setattr("outbound_transfer.lake.feed_table._MAX_BACKOFF", 0.0)
    lake.destination().get_or_create_cursor()

    def overtake() -> None:
        lake.table().append(SCHEMA.empty_table())

    with pytest.raises(WarehouseBusy, match="came first 30 times"):
        lake.destination(catalog=InterruptedCatalog(lake.catalog, before=overtake)).load_page(page(0, *events(0, 3)))
    assert lake.rows() == []


# --------------------------------------------------------------------------------------------------- commits in doubt


def fail(error: Exception) -> Callable[[], Any]:
    def run(*_: object) -> None:
        raise error

    return run


ERRORS = [ConnectionError("reset"), CommitStateUnknownException("504"), CommitFailedException("409")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_commit_in_doubt_is_found_out_and_the_page_is_there_once(lake, error: Exception) -> None:
    lake.destination().get_or_create_cursor()
    interrupted = InterruptedCatalog(lake.catalog, after=once(fail(error)))
    assert lake.destination(catalog=interrupted).load_page(page(0, *events(0, 3))).new_events == 3
    assert (lake.ids(), state_of(lake).cursor) == (["e0", "e1", "e2"], 3)


@pytest.mark.parametrize(("applied", "found"), [("before", 0), ("after", 3)])
def test_a_commit_in_doubt_that_cannot_be_found_out_is_raised_and_the_next_run_goes_on(
    lake, applied: str, found: int
) -> None:
    lake.destination().get_or_create_cursor()
    interrupted = Unreachable(lake.catalog)
    interrupted.at(applied)
    with pytest.raises(OSError, match="no route"):
        lake.destination(catalog=interrupted).load_page(page(0, *events(0, 3)))
    destination = lake.destination()
    cursor = destination.get_or_create_cursor()
    assert cursor == found
    destination.load_page(page(cursor, *events(cursor, cursor + 3)))
    assert lake.ids() == [f"e{number}" for number in range(cursor + 3)]


class Unreachable(InterruptedCatalog):
    """A catalog that cannot be reached any more once its commit was interrupted."""

    def at(self, moment: str) -> None:
        setattr(self, f"_{moment}", self._vanish)

    def _vanish(self) -> None:
        self.load_table = fail(OSError("no route"))  # type: ignore[method-assign, assignment]
        raise ConnectionError("reset")


def test_a_commit_that_fails_is_raised_and_the_next_run_loads_the_page(lake) -> None:
    lake.destination().get_or_create_cursor()
    broken = InterruptedCatalog(lake.catalog, before=once(fail(ConnectionError("reset"))))
    destination = lake.destination(catalog=broken)
    with pytest.raises(ConnectionError, match="reset"):
        destination.load_page(page(0, *events(0, 3)))
    assert lake.rows() == []
    assert destination.load_page(page(0, *events(0, 3))).new_events == 3
    assert lake.ids() == ["e0", "e1", "e2"]


# ------------------------------------------------------------------------------------------------ inspection, repair


@pytest.fixture
def three_pages(lake: Lake) -> Lake:
    """Pages after 0 (four lines), 4 and 8 (two lines and a gap of ten); the cursor is 20."""
    destination = lake.destination()
    destination.get_or_create_cursor()
    destination.load_page(page(0, *events(0, 3), b"junk", has_more=True))
    destination.load_page(page(4, *events(4, 8), has_more=True))
    destination.load_page(page(8, *events(8, 10), next_cursor=20))
    return lake


RESETS = {  # to: cursor afterwards, events left
    0: (0, 0),
    3: (0, 0),
    4: (4, 3),
    7: (4, 3),
    8: (8, 7),
    19: (8, 7),
    20: (20, 9),
    1_000: (1_000, 9),
}


@pytest.mark.parametrize(("to", "expected"), RESETS.items())
def test_a_reset_deletes_what_is_read_again_in_the_same_commit(three_pages, to: int, expected: tuple[int, int]) -> None:
    cursor, left = expected
    assert three_pages.maintenance().reset(to) == (20, cursor)
    assert (state_of(three_pages).cursor, len(three_pages.ids())) == (cursor, left)
    assert problems(three_pages) == []


def test_resets_one_after_another_and_a_feed_that_is_read_again_load_every_event_once(three_pages) -> None:
    maintenance, destination = three_pages.maintenance(), three_pages.destination()
    assert maintenance.reset(8) == (20, 8)
    assert maintenance.reset(6) == (8, 4)
    destination.load_page(page(4, *events(4, 8), *events(8, 10), next_cursor=20))
    assert three_pages.ids() == ["e0", "e1", "e2", *(f"e{number}" for number in range(4, 10))]
    assert problems(three_pages) == []


def test_a_reset_of_an_overtaken_command_changes_nothing(three_pages) -> None:
    load = once(lambda: three_pages.destination().load_page(page(20, *events(20, 22))))
    maintenance = three_pages.maintenance()
    maintenance._table.catalog = InterruptedCatalog(three_pages.catalog, before=load)
    with pytest.raises(CursorMoved):
        maintenance.reset(0)
    assert (len(three_pages.ids()), state_of(three_pages).cursor) == (11, 22)


def test_a_reset_that_was_decided_at_another_cursor_changes_nothing(three_pages) -> None:
    second = three_pages.maintenance()
    shown = second.read_cursor()
    assert three_pages.maintenance().reset(4, expected=shown) == (20, 4)
    with pytest.raises(CursorMoved, match="is no longer 20, it is 4"):
        second.reset(8, expected=shown)
    three_pages.set_property(FEED, "many")
    with pytest.raises(CursorMoved, match="it is not valid"):
        second.reset(8, expected=shown)
    assert len(three_pages.ids()) == 3


@pytest.mark.parametrize("feed", ["{", '{"cursor": "x"}', "null", '{"x":' + "[" * 50_000, None])
def test_a_state_that_is_none_is_refused_and_rebuilt_by_the_rows(three_pages, feed: str | None) -> None:
    """The newest page's end is not known then, so the page is deleted and read again."""
    if feed is None:
        three_pages.remove_property(FEED)
    else:
        three_pages.set_property(FEED, feed)
    for refused in (three_pages.destination().get_or_create_cursor, three_pages.maintenance().status):
        with pytest.raises(InvalidCursor, match="feed rebuild-cursor"):
            refused()
    assert three_pages.maintenance().rebuild_cursor() == (None, 8)
    assert (len(three_pages.ids()), problems(three_pages)) == (7, [])


def test_a_feed_that_was_never_read_is_an_error_and_makes_no_table(lake) -> None:
    maintenance = lake.maintenance()
    for command in (
        maintenance.read_cursor,
        maintenance.status,
        lambda: maintenance.reset(0),
        maintenance.rebuild_cursor,
    ):
        with pytest.raises(UnknownFeed, match="no feed has been read here yet"):
            command()
    assert lake.catalog.list_tables("lake") == []
    lake.destination("other").get_or_create_cursor()
    with pytest.raises(UnknownFeed, match="there is: other"):
        maintenance.status()


def test_verify_says_what_others_added(three_pages) -> None:
    three_pages.table().append(pa.Table.from_pylist([three_pages.rows()[0] | {"cursor_from": 20}], schema=SCHEMA))
    assert problems(three_pages) == [
        "1 rows are of pages from the cursor 20 on, which the next run loads: `feed reset --to 20` deletes them first"
    ]
    assert three_pages.maintenance().reset(20) == (20, 20)
    assert problems(three_pages) == []


def roll_back(lake: Lake) -> None:
    table = lake.table()
    older = table.current_snapshot().parent_snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=older).commit()


def assert_refused(lake: Lake, text: str) -> None:
    for load in (
        lambda: lake.destination().get_or_create_cursor(),
        lambda: lake.destination().load_page(page(20, event(20))),
        lambda: problems(lake),
    ):
        with pytest.raises(InvalidCursor, match=f"{text}.*feed rebuild-cursor"):
            load()


@pytest.mark.parametrize("others", [0, 2])
def test_a_table_that_was_rolled_back_is_not_loaded_before_its_cursor_is_rebuilt(three_pages, others: int) -> None:
    roll_back(three_pages)
    other = three_pages.destination("other")
    for number in range(others):
        other.load_page(page(other.get_or_create_cursor(), event(number)))
    assert_refused(three_pages, "was rolled back")
    assert three_pages.maintenance().rebuild_cursor() == (None, 4)
    assert three_pages.destination().get_or_create_cursor() == 4


def test_a_rollback_of_a_reset_is_refused(three_pages) -> None:
    three_pages.maintenance().reset(4)
    table = three_pages.table()
    before = next(each for each in table.snapshots() if each.parent_snapshot_id is None)
    table.manage_snapshots().set_current_snapshot(snapshot_id=before.snapshot_id).commit()
    assert_refused(three_pages, "was rolled back")


def test_a_tagged_commit_whose_successors_expired_is_no_rollback(three_pages) -> None:
    tagged = three_pages.table().current_snapshot().snapshot_id
    three_pages.table().manage_snapshots().create_tag(tagged, "kept").commit()
    other = three_pages.destination("other")
    for number in range(4):
        other.load_page(page(other.get_or_create_cursor(), event(number)))
    kept = {tagged, three_pages.table().current_snapshot().snapshot_id}
    old = [each.snapshot_id for each in three_pages.table().snapshots() if each.snapshot_id not in kept]
    three_pages.table().maintenance.expire_snapshots().by_ids(old).commit()
    assert three_pages.destination().get_or_create_cursor() == 20


def test_another_pyiceberg_is_refused_at_import(monkeypatch) -> None:
    def init(transaction: Any) -> None:
        transaction._producers = []

    monkeypatch.setattr(Transaction, "__init__", init)
    with pytest.raises(ImportError, match="pyiceberg>=0.12,<0.13"):
        importlib.reload(feed_table)


def test_rows_that_were_deleted_are_no_rollback(three_pages) -> None:
    three_pages.table().delete("account = 'acme'")
    assert three_pages.destination().get_or_create_cursor() == 20


def test_a_table_that_was_made_with_the_properties_of_another_one_is_refused(three_pages) -> None:
    table = three_pages.table()
    three_pages.catalog.drop_table("lake.events")
    three_pages.catalog.create_table("lake.events", schema=table.schema(), properties=table.properties)
    assert_refused(three_pages, "was rolled back or replaced")


# ------------------------------------------------------------------------------------------------------- snapshots


def test_old_snapshots_expire_and_those_that_readers_may_use_stay(lake) -> None:
    class Clock:
        age = timedelta(0)

        def __call__(self) -> datetime:
            return datetime.now(UTC) + self.age

    clock = Clock()
    destination = lake.destination(clock=clock, keep_snapshots_for=timedelta(hours=1))
    destination.get_or_create_cursor()
    for number in range(4):
        destination.load_page(page(number, *events(number, number + 1)))
        if number == 1:
            lake.table().manage_snapshots().create_tag(lake.table().current_snapshot().snapshot_id, "kept").commit()
    assert lake.snapshots() == 5
    clock.age = timedelta(hours=2)
    destination.load_page(page(4, *events(4, 5)))
    assert lake.snapshots() == 3  # the newest when the page was loaded, the page, and the tag
    assert len(lake.ids()) == 5
    assert destination.get_or_create_cursor() == 5


def test_an_expiry_that_another_one_overtakes_harms_no_page(lake) -> None:
    destination = lake.destination()
    destination.get_or_create_cursor()
    for number in range(3):
        destination.load_page(page(number, event(number)))
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    expire = once(lambda: lake.table().maintenance.expire_snapshots().older_than(tomorrow).commit())
    overtaken = InterruptedCatalog(lake.catalog, before=expire)
    lake.destination(catalog=overtaken, keep_snapshots_for=timedelta(days=-1)).load_page(page(3, event(3)))
    assert (lake.ids(), lake.snapshots()) == (["e0", "e1", "e2", "e3"], 2)


# --------------------------------------------------------------------------------------------- tables of somebody else


def refusal_of(lake: Lake) -> str:
    with pytest.raises(UnusableTable) as refused:
        lake.destination().get_or_create_cursor()
    return str(refused.value)


def test_a_table_of_other_columns_is_refused(lake) -> None:
    fields = [pa.field("account", pa.int64()), pa.field("more", pa.string(), nullable=False)]
    lake.catalog.create_table("lake.events", schema=pa.schema(fields))
    refusal = refusal_of(lake)
    assert "the table lake.events is not as this package creates it" in refusal


def test_a_column_that_is_dropped_is_refused_and_one_that_is_added_is_not(three_pages) -> None:
    from pyiceberg.types import StringType

    with three_pages.table().update_schema() as update:
        update.add_column("remark", StringType())
    assert three_pages.destination().load_page(page(20, *events(20, 22))).new_events == 2
    with three_pages.table().update_schema() as update:
        update.delete_column("raw")
    with pytest.raises(UnusableTable, match="raw"):
        three_pages.destination().load_page(page(22, *events(22, 24)))


def test_a_table_that_was_replaced_is_not_loaded_a_second_time(three_pages) -> None:
    rows = three_pages.table().scan().to_arrow()
    schema = three_pages.table().schema()
    three_pages.catalog.drop_table("lake.events")
    three_pages.catalog.create_table("lake.events", schema=schema).append(rows)
    with pytest.raises(InvalidCursor, match="has events of acme but no cursor"):
        three_pages.destination().get_or_create_cursor()


def test_a_namespace_that_is_not_there_is_an_error_in_words(lake) -> None:
    lake.catalog.drop_namespace("lake")
    assert refusal_of(lake) == "the namespace lake does not exist in the catalog: create it first"
