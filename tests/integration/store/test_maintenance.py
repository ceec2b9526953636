"""What a person does to a feed's tables; older tables, databases that are not known, many readers beside an ingest."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from outbound_transfer.store.destination import PollRecord
from outbound_transfer.store.errors import InvalidCursor, InvalidName, WarehouseBusy
from outbound_transfer.store.events import EventStore, read_cursors
from outbound_transfer.store.tables import Tables
from support.feed_pages import event, page, tables
from support.warehouses import Hook, duckdb_hook, held_by_another_process

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def landed(hook: Hook) -> EventStore:
    feed = tables(hook)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(1), event(2), has_more=True))
    feed.log_poll(PollRecord(cursor_from=2, status=429, note="rate limited"))
    feed.load_page(page(2, b"junk", event(3)))
    return feed


POLLS = "SELECT action, status, events, new_events, rejected, cursor_from, cursor_to, has_more, note FROM {}"


def test_every_poll_leaves_a_row_in_the_log(hook: Hook) -> None:
    landed(hook)
    query = POLLS.format("outbound_transfer_feed_polls ORDER BY cursor_from, polled_at")
    assert hook.fetch(query) == [
        ("poll", 200, 2, 2, 0, 0, 2, True, None),
        ("poll", 429, 0, 0, 0, 2, None, None, "rate limited"),
        ("poll", 200, 1, 1, 1, 2, 4, False, None),
    ]


def test_status_and_verify_of_a_sound_feed(hook: Hook) -> None:
    feed = landed(hook)
    found = feed.status()
    assert (found.cursor, found.caught_up, found.events, found.rejected, found.status) == (4, True, 3, 1, 200)
    assert list(feed.find_problems()) == []
    assert read_cursors(feed.tables) == {"acme": 4}


def test_verify_says_what_is_wrong(hook: Hook) -> None:
    feed = landed(hook)
    hook.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = 1')
    said = "\n".join(feed.find_problems())
    assert "1 row of events" in said
    assert "1 row of rejected_lines" in said
    assert "the log ends at 4" in said
    hook.run("DELETE FROM outbound_transfer_feed_polls WHERE cursor_to = 4")
    hook.run('UPDATE outbound_transfer_feed_cursor SET "cursor" = 7')
    feed.log_poll(PollRecord(cursor_from=5, cursor_to=7, status=200))
    assert any("the log has a gap" in fault for fault in feed.find_problems())


def test_a_reset_and_a_rebuild_are_in_the_log(hook: Hook) -> None:
    feed = landed(hook)
    assert feed.reset(0) == (4, 0)
    assert feed.get_or_create_cursor() == 0
    assert feed.rebuild_cursor() == (0, 2)
    assert feed.load_page(page(2, b"junk", event(3))).new_events == 0
    query = "SELECT action, cursor_from, cursor_to FROM outbound_transfer_feed_polls WHERE action <> 'poll'"
    assert sorted(hook.fetch(query)) == [("rebuild", 0, 2), ("reset", 4, 0)]
    assert list(feed.find_problems()) == []
    with pytest.raises(InvalidCursor):
        feed.reset(-1)


def test_a_feed_has_a_name_of_some_length(hook: Hook) -> None:
    for name in ("", "x" * 251):
        with pytest.raises(InvalidName):
            tables(hook, name)


# -------------------------------------------------------------------------------------------------------- many readers


def test_four_readers_in_a_loop_beside_the_ingest_fail_nobody(hook: Hook) -> None:
    feed, done, wrong = tables(hook), threading.Event(), []
    feed.get_or_create_cursor()

    def read() -> None:
        while not done.is_set():
            try:
                (count,) = hook.fetch("SELECT count(*) FROM outbound_transfer_events")[0]
                assert count % 10 == 0
            except Exception as error:
                # Of DuckDB, in a process that is closing the file: readers elsewhere have a test below.
                if "Unique file handle conflict" not in str(error):
                    wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for start in range(0, 100, 10):
            feed.load_page(page(start, *(event(number) for number in range(start, start + 10))))
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert hook.fetch("SELECT count(*) FROM outbound_transfer_events") == [(100,)]


READ = """
import duckdb, sys, time
print("reading", flush=True)
read = 0
while True:
    try:
        with duckdb.connect(sys.argv[1], read_only=True) as connection:
            (count,) = connection.execute("SELECT count(*) FROM outbound_transfer_events").fetchone()
    except duckdb.IOException as error:  # as long as another process writes
        assert "lock on file" in str(error), error
        time.sleep(0.005)
        continue
    assert count % 10 == 0, count
    read += 1
    if count == 100:
        sys.exit(0 if read > 1 else "only the end was seen")
"""


def test_four_processes_that_read_a_duckdb_file_in_a_loop_fail_no_ingest(hook_of: Any, memory: Path) -> None:
    feed = tables(hook_of("duckdb"))
    feed.get_or_create_cursor()
    command = [sys.executable, "-c", READ, str(memory / "warehouse.duckdb")]
    with ExitStack() as stack:
        readers = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)) for _ in range(4)]
        for reader in readers:
            assert reader.stdout
            reader.stdout.readline()
        for start in range(0, 100, 10):
            assert feed.load_page(page(start, *(event(number) for number in range(start, start + 10)))).new_events == 10
        assert [reader.wait(60) for reader in readers] == [0, 0, 0, 0]


def test_duckdb_waits_for_another_process_and_says_so_in_the_end(hook_of: Any, memory: Path) -> None:
    hook = hook_of("duckdb")
    feed = tables(hook)
    feed.get_or_create_cursor()
    with held_by_another_process(memory / "warehouse.duckdb") as let_go:
        with pytest.raises(WarehouseBusy, match="in use for 0 s"):
            tables(hook, timeout=0.2).load_page(page(0, event(1)))
        timer = threading.Timer(0.5, let_go)
        timer.start()
        assert feed.load_page(page(0, event(1))).new_events == 1
        timer.join()
    with closing(duckdb.connect(memory / "warehouse.duckdb")) as connection:
        assert connection.execute("SELECT count(*) FROM outbound_transfer_events").fetchone() == (1,)


def test_a_duckdb_schema_may_be_called_like_the_tables(memory: Path) -> None:
    file = memory / "warehouse.duckdb"
    with closing(duckdb.connect(file)) as connection:
        connection.execute("CREATE SCHEMA outbound_transfer")
    feed = EventStore(Tables(duckdb_hook(file), schema="outbound_transfer"), "acme")
    assert feed.get_or_create_cursor() == 0
    assert feed.load_page(page(0, event(1))).new_events == 1
