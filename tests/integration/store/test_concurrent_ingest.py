"""Many ingests at once, readers beside them, and many that use an empty warehouse for the first time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

from outbound_transfer.store.tables import GROUPS, Tables
from support.feed_pages import IDS, PAGES, events, page, tables
from support.timeouts import TEST_TIMEOUT
from support.warehouses import Hook


def _at_once(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks at the same moment; return what each returned or raised."""
    barrier = threading.Barrier(len(tasks))
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = [pool.submit(lambda task=task: (barrier.wait(), task())[1]) for task in tasks]
    return [future.exception() or future.result() for future in futures]


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


def test_a_strict_default_isolation_level_breaks_no_concurrent_load(hook_of: Callable[[str], Hook]) -> None:
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


def test_tables_are_created_once_in_any_order_and_used_at_once(hook: Hook) -> None:
    """As when the feed and the transfers are loaded side by side, for the first time."""

    def use(number: int) -> int:
        groups, first = list(GROUPS.values()), number // 2 % len(GROUPS)
        for group in groups[first:] + groups[:first]:
            Tables(hook).create(group)
        feed = tables(hook, f"account {number}")
        assert feed.get_or_create_cursor() == 0
        return feed.load_page(PAGES[0]).new_events

    assert _at_once([partial(use, number) for number in range(8)]) == [3] * 8
    assert hook.fetch("SELECT count(*) FROM outbound_transfer_events") == [(24,)]
