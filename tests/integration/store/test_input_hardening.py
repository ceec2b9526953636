"""What a feed may serve and a database may refuse: poisoned rows, pages that are read again, cursors that jump."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from tenacity import stop_after_attempt

from outbound_transfer.store.destination import MAX_NOTE, PollRecord
from outbound_transfer.store.errors import PageRefused, TooManyRejectedLines, first_line, words_of
from outbound_transfer.store.events import EventStore
from outbound_transfer.transfers.feed_ingest import FeedIngest, IngestProgress
from support import feed_pages
from support.feed_pages import PAGES, event, page, state_of
from support.warehouses import Hook, refuse_rows, sqlite_hook


def tables(hook: Any) -> EventStore:
    feed = feed_pages.tables(hook)
    feed.get_or_create_cursor()
    return feed


EVENTS = "SELECT event_id, raw IS NULL, data IS NULL FROM outbound_transfer_events ORDER BY cursor_from, line_number"
REJECTED = (
    "SELECT cursor_from, line_number, raw, reason FROM outbound_transfer_rejected_lines"
    " ORDER BY cursor_from, line_number"
)


def raws(hook: Hook) -> list[bytes]:
    return sorted(bytes(row[2]) for row in hook.fetch(REJECTED))


def refusing(hook: Hook, pattern: str) -> None:
    refuse_rows(hook.get_conn, hook.dialect_name, pattern)


def test_rows_that_the_database_refuses_stop_no_others(hook: Hook) -> None:
    feed = tables(hook)
    refusing(hook, "bad%")
    lines = [event(n, type="bad é" if n in (3, 7, 8) else "t") for n in range(20)]
    with pytest.raises(TooManyRejectedLines, match="4 lines of the page after cursor 0 .* max_rejected is 3"):
        feed.load_page(page(0, *lines, b"junk"), 3)
    assert (hook.fetch(EVENTS), hook.fetch(REJECTED), feed.get_or_create_cursor()) == ([], [], 0)
    settled = feed.load_page(page(0, *lines, b"junk"), 4).page
    assert [line.line_number for line in settled.rejected] == [4, 8, 9, 21]
    assert [row[0] for row in hook.fetch(EVENTS)] == [f"e{n}" for n in range(20) if n not in (3, 7, 8)]
    rejected = hook.fetch(REJECTED)
    assert [bytes(row[2]) for row in rejected] == [lines[3], lines[7], lines[8], b"junk"]
    assert rejected[0][3].startswith("the database refused it: ")
    assert rejected[0][3].isascii(), "it quotes the row"
    assert list(feed.find_problems()) == []
    feed.reset(0)
    feed.load_page(page(0, *lines, b"junk"))
    assert (hook.fetch(REJECTED), feed.get_or_create_cursor()) == (rejected, 21), "refused again, and there once"


def test_a_rejected_line_that_the_database_accepts_later_becomes_an_event(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    feed = tables(hook)
    refusing(hook, "bad%")
    for start in (0, 2):
        feed.load_page(page(start, event(start, type="bad"), event(start + 1)))
    hook.run("ALTER TABLE outbound_transfer_events DROP CONSTRAINT refusing")
    feed.reset(0)
    feed.load_page(page(0, event(0, type="bad")))  # cut otherwise
    assert raws(hook) == [event(2, type="bad")]
    feed.load_page(page(1, event(1), event(2, type="bad"), event(3)))
    assert sorted(row[0] for row in hook.fetch(EVENTS)) == ["e0", "e1", "e2", "e3"]
    assert hook.fetch(REJECTED) == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_database_of_another_encoding_keeps_what_it_cannot_spell(postgres, driver, hook_of) -> None:
    name = f"{postgres.name}_latin"
    with closing(postgres.connect(autocommit=True)) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    try:
        other = type(postgres)(postgres.host, name)
        hook = Hook("postgresql", lambda: other.connect(driver))
        feed = tables(hook)
        lines = [event(1), json.dumps({"event_id": "e2", "type": "日本"}, ensure_ascii=False).encode(), event(3)]
        feed.load_page(page(0, *lines))
        assert [row[0] for row in hook.fetch(EVENTS)] == ["e1", "e3"]
        assert raws(hook) == [lines[1]]
    finally:
        with closing(postgres.connect(autocommit=True)) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_time_zone_of_whoever_looks_is_none_that_a_timestamp_could_leave(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("psycopg")
    hook.run("ALTER DATABASE " + hook.fetch("SELECT current_database()")[0][0] + " SET timezone = 'Asia/Tokyo'")
    feed = tables(hook)
    feed.load_page(page(0, event(1, timestamp="9999-12-31T23:59:59Z"), event(2, timestamp="9998-12-31T23:59:59Z")))
    assert feed.status().occurred_at == datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_page_that_is_refused_as_a_whole_is_in_the_log_of_polls(hook: Hook) -> None:
    feed = tables(hook)
    refusing(hook, "%")
    options = {"address": "acme.example.com", "max_pages": None, "max_rejected": None, "sleep": lambda _: None}
    with pytest.raises(PageRefused, match="refuses every row of the page after 0"):
        FeedIngest(lambda _: PAGES[0], feed, IngestProgress(), **options).run()  # type: ignore[arg-type]
    found = feed.status()
    assert (found.cursor, found.events, found.status) == (0, 0, 200)
    assert "not loaded: PageRefused: the database refuses every row" in str(found.note)


def test_the_log_of_polls_has_nobody_whose_row_a_new_column_refuses(hook_of: Callable[[str], Hook]) -> None:
    """PostgreSQL quotes the whole row."""
    hook = hook_of("psycopg")
    feed = tables(hook)
    hook.run("ALTER TABLE outbound_transfer_events ADD COLUMN owner TEXT NOT NULL")
    options = {"address": "acme.example.com", "max_pages": None, "max_rejected": None, "sleep": lambda _: None}
    with pytest.raises(PageRefused) as refused:
        FeedIngest(lambda _: page(0, event(1, type="ann@example.com")), feed, IngestProgress(), **options).run()  # type: ignore[arg-type]
    assert "ann" not in f"{refused.value} {feed.status().note}"
    assert "owner" in str(feed.status().note)


def test_the_note_of_a_poll_is_bounded_and_printable(hook: Hook) -> None:
    feed = tables(hook)
    feed.log_poll(PollRecord(cursor_from=0, status=500, note="\0 \ud800 é" + "x" * 10_000))
    ((note,),) = hook.fetch("SELECT note FROM outbound_transfer_feed_polls")
    assert len(note) == MAX_NOTE
    assert "\0" not in note
    assert note.startswith("\ufffd ? é")


@pytest.mark.parametrize("text", ["ann@example.com", "Ann O'Hara"])
def test_no_error_shows_a_person_of_the_row(any_hook: Hook, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB and MySQL quote it on the first line."""
    monkeypatch.setattr("outbound_transfer.store.engine.stop_after_delay", lambda _: stop_after_attempt(2))
    feed, length = tables(any_hook), "(50)" if any_hook.dialect_name == "mysql" else ""
    any_hook.run(f"CREATE UNIQUE INDEX one_of_a_type ON outbound_transfer_events (type{length})")
    with pytest.raises(IntegrityError) as refused:
        feed.load_page(page(0, event(1, type=text), event(2, type=text)))
    assert re.search("ann|hara", f"{words_of(refused.value)} {first_line(refused.value)}", re.IGNORECASE) is None
    assert state_of(any_hook) == (0, [], 0), "an index of the user's own is not taken for a lost race"


def test_a_full_disk_is_named_without_the_row(tmp_path) -> None:
    file = tmp_path / "events.db"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA max_page_count = 1")  # as many as there are
        return connection

    tables(sqlite_hook(file))
    feed = feed_pages.tables(Hook("sqlite", connect))
    with pytest.raises(OperationalError) as full:
        feed.load_page(page(0, event(1, data="ann@example.com" * 100_000)))
    assert words_of(full.value) == "OperationalError: database or disk is full. Make room on the disk of the database"
    assert tables(sqlite_hook(file)).get_or_create_cursor() == 0
