"""The ingest over a scripted feed and an event store in SQLite, without Airflow and without sleeping."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
import sqlalchemy as sa

from outbound_transfer.client.errors import NoResponse
from outbound_transfer.client.events import Event, Page
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.tables import FEED_POLLS, Tables
from outbound_transfer.transfers.feed_ingest import FEED_INTERVAL, FeedIngest, IngestProgress
from support.warehouses import sqlite_hook


class Elsewhere(Exception):
    """The sleep was refused."""


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    return EventStore(Tables(sqlite_hook(tmp_path / "warehouse.db")), "acme")


def notes_of(store: EventStore) -> list[str | None]:
    """The notes of polls that loaded nothing."""
    polls = store.tables.named(FEED_POLLS).c
    with store.database.begin() as tx:
        return list(tx.scalars(sa.select(polls.note).where(polls.cursor_to.is_(None))))


def ingest_of(
    store: EventStore,
    read: Callable[[int], Page],
    progress: IngestProgress | None = None,
    sleep: Callable[[float], None] = lambda _: None,
) -> FeedIngest:
    options = {"address": "acme.example.com", "max_pages": None, "max_rejected": 0, "sleep": sleep}
    return FeedIngest(read, store, progress or IngestProgress(), **options)  # type: ignore[arg-type]


def test_a_poll_that_failed_is_recorded(store: EventStore) -> None:
    with pytest.raises(NoResponse):
        ingest_of(store, Mock(side_effect=NoResponse("it broke"))).run()
    assert notes_of(store) == ["it broke"]


def _page(cursor: int, next_cursor: int, *ids: str, has_more: bool = True) -> Page:
    events = tuple(Event(each, "t", None, None, None, line) for line, each in enumerate(ids, 1))
    return Page(cursor, next_cursor, has_more, events, ())


def test_a_wild_cursor_is_not_believed_from_one_response(store: EventStore) -> None:
    responses = [_page(0, 10**15, "1", "2", "3"), _page(0, 3, "1", "2", "3", has_more=False)]
    sleeps: list[float] = []
    assert ingest_of(store, lambda _: responses.pop(0), sleep=sleeps.append).run().cursor_to == 3
    assert sleeps == [pytest.approx(FEED_INTERVAL, abs=5)]
    assert notes_of(store) == ["X-Next-Cursor 1000000000000000 is 999999999999997 beyond what 3 lines account for"]


@pytest.mark.parametrize(
    ("claims", "accepted"),
    [
        ([50, 50], 2),
        ([50, 10**15, 40], 3),
        ([40, 80], 2),  # a feed that grows all the time claims more each time
        ([40, 81, 81], 3),
    ],
)
def test_a_cursor_is_believed_when_two_responses_claim_about_as_much(
    store: EventStore, claims: list[int], accepted: int
) -> None:
    """Also if the task defers in between."""
    progress, read = IngestProgress(), 0

    def refuse(_: float) -> None:
        raise Elsewhere

    while progress.pages == 0:
        page = _page(0, claims[read], "1", "2", has_more=False)
        ingest = ingest_of(store, lambda _, page=page: page, progress, sleep=refuse)
        read += 1
        with suppress(Elsewhere):
            ingest.run()
        progress = msgspec.convert(msgspec.to_builtins(ingest.progress), IngestProgress)
    assert (read, progress.cursor_to) == (accepted, claims[accepted - 1])


def test_a_feed_whose_ids_are_not_positions_is_read_twice_only_for_larger_steps(store: EventStore) -> None:
    pages = [
        _page(0, 1_000, "e1", "e2"),
        _page(0, 1_000, "e1", "e2"),
        _page(1_000, 1_900, "e3"),
        _page(1_900, 3_000, "e4"),
        _page(1_900, 3_000, "e4"),
        _page(3_000, 3_001),  # a page without events says nothing for its cursor
        _page(3_000, 3_001, has_more=False),
    ]
    asked: list[int] = []

    def read(cursor: int) -> Page:
        asked.append(cursor)
        return pages.pop(0)

    assert ingest_of(store, read).run().summary()["cursor_to"] == 3_001
    assert asked == [0, 0, 1_000, 1_900, 1_900, 3_000, 3_000]
