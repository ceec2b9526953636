"""A page is stored whole, with its cursor, or not at all: whatever fails, at whatever statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from outbound_transfer.client.events import Page
from outbound_transfer.store.events import EventStore
from support.feed_pages import CONSISTENT, PAGES, Fault, Faulty, drop_tables, rewind, state_of, tables
from support.warehouses import Hook


def _drain(feed: EventStore, feed_pages: dict[int, Page]) -> None:
    while (cursor := feed.get_or_create_cursor()) in feed_pages:
        feed.load_page(feed_pages[cursor])


#: In SQLite, at the statements that make the tables too; elsewhere they are there, which saves most of the time.
#: DuckDB, the slowest, has its faults after a statement in `make test-crash-ingest`.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "after"),
    [
        (name, after)
        for name in ("sqlite", "psycopg", "psycopg2", "psycopg-autocommit", "mysqlclient")
        for after in (False, True)
    ]
    + [("duckdb", False)],
)
def test_a_fault_at_any_statement_lands_a_page_whole_or_not_at_all(
    hook_of: Callable[[str], Hook], name: str, after: bool
) -> None:
    hook = hook_of(name)
    met = []
    if name != "sqlite":
        tables(hook).get_or_create_cursor()
    for at in range(1, 100):
        (drop_tables if name == "sqlite" else rewind)(hook)
        faulty = Faulty(at, after)
        try:
            _drain(faulty.tables(hook), PAGES)
        except Fault:
            assert state_of(hook) in CONSISTENT, faulty.met
            _drain(tables(hook), PAGES)
        assert state_of(hook) == CONSISTENT[-1]
        met += faulty.met
        if not faulty.met:
            break
    for kind in ("UPDATE", "SELECT", "INSERT INTO", "commit"):
        assert any(statement.startswith(kind) for statement in met), f"no fault was met in {kind}"


def test_a_connection_that_is_killed_in_the_middle_lands_nothing(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    tables(hook).get_or_create_cursor()
    statements = []

    class Killing(Faulty):
        def step(self, what: str, run: Callable[[], Any]) -> Any:
            statements.append(what)
            if what.startswith("INSERT INTO") and "events" in what:
                hook.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
            return run()

    with pytest.raises(OperationalError):
        Killing(0, after=False).tables(hook).load_page(PAGES[0])
    assert any(statement.startswith("UPDATE") for statement in statements)
    assert state_of(hook) == CONSISTENT[0]
