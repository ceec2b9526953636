"""Many ingests of one feed at once, and readers beside them."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.store.errors import CursorMoved
from support.feed_pages import CURSOR, IDS, PAGES, Faulty, drop_tables, events, page, tables
from support.timeouts import TEST_TIMEOUT
from support.warehouses import Hook, sqlite_hook


def _at_once(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    barrier = threading.Barrier(len(tasks))

    def started(task: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return task()
        except CursorMoved as moved:
            return moved

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(started, tasks))


def test_tables_can_be_created_by_many_at_once(hook: Hook) -> None:
    for _ in range(3):
        assert _at_once([tables(hook).get_or_create_cursor] * 8) == [0] * 8
        assert hook.fetch(CURSOR) == [(0,)]
        drop_tables(hook)


def test_of_readers_that_race_for_a_page_one_lands_it(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    for number in range(5):
        start = number * 100
        raced = page(start, *events(start, start + 100))
        # Each has the events in an order of its own, as a server may give them.
        outcomes = _at_once([lambda raced=raced: tables(hook).load_page(raced)] * 6)  # type: ignore[misc]
        assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["CursorMoved"] * 5 + ["Loaded"]
        assert feed.get_or_create_cursor() == start + 100
    assert len(hook.fetch(IDS)) == 500


@pytest.mark.parametrize("readers", [2, 6])
def test_readers_that_drain_at_once_land_everything_once(hook: Hook, readers: int) -> None:
    pages = {start: page(start, *events(start, start + 10)) for start in range(0, 200, 10)}

    def drain() -> None:
        feed = tables(hook)
        while (cursor := feed.get_or_create_cursor()) in pages:
            try:
                feed.load_page(pages[cursor])
            except CursorMoved:
                continue

    _at_once([drain] * readers)
    assert [row[0] for row in hook.fetch(IDS)] == [f"e{number}" for number in range(200)]


def test_feeds_of_six_accounts_load_at_once(hook: Hook) -> None:
    pages = {start: page(start, *events(start, start + 10)) for start in range(0, 80, 10)}

    def drain(account: str) -> None:
        feed = tables(hook, account)
        while (cursor := feed.get_or_create_cursor()) in pages:
            feed.load_page(pages[cursor])

    assert _at_once([partial(drain, f"account {number}") for number in range(6)]) == [None] * 6
    assert sorted(hook.fetch(IDS)) == sorted((f"e{number}",) for number in range(80) for _ in range(6))


def test_a_strict_default_isolation_is_no_error(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    hook.run(
        "ALTER ROLE postgres IN DATABASE "
        + hook.fetch("SELECT current_database()")[0][0]
        + " SET default_transaction_isolation = 'serializable'"
    )
    tables(hook).get_or_create_cursor()
    outcomes = _at_once([lambda: tables(hook).load_page(PAGES[0])] * 4)
    assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["CursorMoved"] * 3 + ["Loaded"]


def test_a_reader_neither_blocks_the_ingest_nor_sees_half_a_page(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    feed.load_page(page(0, *events(0, 3)))
    with closing(hook.get_conn()) as reader, closing(reader.cursor()) as cursor:
        cursor.execute(
            "BEGIN" if hook.dialect_name != "postgresql" else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
        )
        cursor.execute(IDS)
        assert len(cursor.fetchall()) == 3
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(feed.load_page, page(3, *events(3, 5))).result(TEST_TIMEOUT).new_events == 2
        cursor.execute(IDS)
        assert len(cursor.fetchall()) == 3
    assert len(hook.fetch(IDS)) == 5


def test_what_is_not_committed_is_not_seen_and_blocks_no_reader(hook: Hook) -> None:
    tables(hook).get_or_create_cursor()
    assert hook.fetch(IDS) == []
    counts = []

    class Watching(Faulty):
        def step(self, what: str, run: Callable[[], Any]) -> Any:
            result = run()
            if what.startswith("INSERT INTO"):
                counts.append(len(hook.fetch(IDS)))
            return result

    Watching(0, after=False).tables(hook).load_page(PAGES[0])
    assert len(counts) >= 3
    assert set(counts) == {0}
    assert len(hook.fetch(IDS)) == 3


def test_sqlite_waits_for_another_writer(tmp_path: Path) -> None:
    hook = sqlite_hook(tmp_path / "warehouse.db")
    feed = tables(hook)
    feed.get_or_create_cursor()
    assert hook.fetch("PRAGMA journal_mode") == [("wal",)]
    with closing(sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None, check_same_thread=False)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        asks, released = threading.Event(), threading.Event()

        def release() -> None:
            asks.wait(TEST_TIMEOUT)
            time.sleep(0.3)  # it has asked, and is refused meanwhile
            released.set()
            writer.rollback()

        class Signaling(Faulty):
            def step(self, what: str, run: Callable[[], Any]) -> Any:
                asks.set()
                return super().step(what, run)

        with ThreadPoolExecutor(1) as pool:
            releasing = pool.submit(release)
            assert Signaling(0, after=False).tables(hook).load_page(PAGES[0]).new_events == 3
            assert released.is_set()
            releasing.result()
