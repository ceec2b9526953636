"""Which databases are a warehouse, and pages that one refuses as a whole."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import DataError

from outbound_transfer.store.errors import PageRefused, UnsupportedDatabase
from outbound_transfer.store.tables import Tables
from outbound_transfer.transfers.feed_ingest import FeedIngest, IngestProgress
from support.feed_pages import CURSOR, PAGES, tables
from support.warehouses import Hook, observe, refuse_rows


@pytest.mark.parametrize("name", ["athena", "clickhouse", "mssql", "redshift", "snowflake", "trino"])
@pytest.mark.parametrize("attribute", ["conn_type", "dialect_name"])
def test_another_database_is_refused_by_its_name(name: str, attribute: str) -> None:
    names = {"conn_type": "postgres", "dialect_name": "postgresql"} | {attribute: name}
    with pytest.raises(UnsupportedDatabase, match=r"one of PostgreSQL, MySQL, MariaDB, SQLite or DuckDB; docs/ware"):
        Tables(SimpleNamespace(**names))


def test_a_type_of_connection_is_known_before_the_database_is_asked_for_its_name() -> None:
    class Hook:
        conn_type = "gcpbigquery"

        @property
        def dialect_name(self) -> str:
            raise OSError("no credentials")

    with pytest.raises(UnsupportedDatabase, match="No events or transfers are stored in gcpbigquery"):
        Tables(Hook())  # type: ignore[arg-type]


def test_a_page_that_is_refused_as_a_whole_is_in_the_log_of_polls(hook: Hook) -> None:
    feed = tables(hook)
    feed.get_or_create_cursor()
    refuse_rows(hook.get_conn, hook.dialect_name, "%")
    ingest = FeedIngest(
        lambda _: PAGES[0],
        feed,
        IngestProgress(),
        address="acme.example.com",
        max_pages=None,
        max_rejected=None,
        sleep=lambda _: None,
    )
    with pytest.raises(PageRefused, match="refuses any row of the page after 0"):
        ingest.run()
    found = feed.status()
    assert (found.cursor, found.events, found.status) == (0, 0, 200)
    assert found.note is not None
    assert "not loaded: PageRefused: the database refuses any row" in found.note
    assert hook.fetch(CURSOR) == [(0,)]


def test_a_refusal_that_does_not_come_again_costs_nothing(hook: Hook) -> None:
    feed, errors = tables(hook), [DataError("INSERT", {}, Exception("once"))]

    def refuse_once(what: str, run: Callable[[], Any]) -> Any:
        if errors and what.startswith("INSERT") and "_events" in what:
            raise errors.pop()
        return run()

    observe(feed.database, refuse_once)
    feed.get_or_create_cursor()
    assert feed.load_page(PAGES[0]).new_events == 3
    assert errors == []
