"""Personal data: a person is found, erased everywhere and never brought back; which columns have people; age."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from outbound_transfer.client.events import Page
from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.personal_data import AddressSearch, PersonalData, delete_before, personal_data_of
from outbound_transfer.store.tables import Tables
from outbound_transfer.store.transfers import TransferTables
from support.feed_pages import event, page

ADDRESS = "quasimodo+tag@example.com"
SEARCH = AddressSearch(ADDRESS)
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


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "mysqlclient"])
def warehouse(request, hook_of) -> Tables:
    return Tables(hook_of(request.param))


@pytest.fixture
def personal(warehouse) -> PersonalData:
    return personal_data_of(warehouse, "here")


def load(feed: EventStore, *pages: Page) -> None:
    """Load pages that begin where the feed is; others are known already."""
    for each in pages:
        if each.cursor >= feed.get_or_create_cursor():
            assert feed.get_or_create_cursor() == each.cursor
            feed.load_page(each)


def test_an_erased_person_is_found_nowhere_even_after_pages_are_read_again(warehouse, personal) -> None:
    feed = EventStore(warehouse, "acme")

    def check_gone() -> None:
        assert personal.find(SEARCH) == {}
        assert list(feed.find_problems()) == []

    load(feed, *PAGES)
    before = feed.status()
    assert {table: len(found) for table, found in personal.find(SEARCH).items()} == CHANGED
    assert personal.erase(SEARCH) == CHANGED
    check_gone()
    assert personal.erase(SEARCH) == {}
    for other in OTHERS:
        assert personal.find(AddressSearch(other)), other
    assert "Quasi M." in str(personal.find(AddressSearch("bob@example.com"))), "of a file, not of the person"
    assert feed.status() == before, "nor did the cursor move"
    # The service still has the person: pages come again, also cut otherwise.
    feed.rebuild_cursor()
    load(feed, *PAGES)
    check_gone()
    for pages in (PAGES, (page(0, *LINES[:4], has_more=True), page(4, *LINES[4:], has_more=True), *PAGES[1:])):
        feed.reset(0)
        load(feed, *pages)
        check_gone()
        assert (feed.status().events, feed.status().rejected) == (9, 1)
    load(feed, page(10, event(10, data={"to": ADDRESS})))
    assert personal.erase(SEARCH) == {"events": 1}, "what is new is new, even if its content is not"
    check_gone()


def test_another_event_of_an_erased_id_is_another(warehouse, personal) -> None:
    """An id is no identity: what is sent to somebody else is not the erased event."""
    feed = EventStore(warehouse, "acme")
    first, second = event(0, data={"to": ADDRESS}), event(0, data={"to": "bob@example.com"})
    pages = page(0, first, has_more=True), page(1, second, has_more=True), page(2, event(2))
    load(feed, *pages)
    personal.erase(SEARCH)
    feed.reset(0)
    load(feed, *pages)
    assert personal.find(AddressSearch("bob@example.com"))
    assert personal.find(SEARCH) == {}


def test_old_personal_data_is_deleted_and_the_feed_keeps_its_position(warehouse, personal) -> None:
    now = datetime.now(UTC)
    feeds = {account: EventStore(warehouse, account) for account in ("acme", "other")}
    for account, last, pages in (("acme", 10, PAGES), ("other", 1, (page(0, event(0)),))):
        load(feeds[account], *pages, page(last), page(last))
        tables = TransferTables(warehouse, account, "conn")
        tables.sync_state()
        given = {"recipients": (Recipient(ADDRESS),), "sent_at": "2020-01-01T00:00:00Z"}
        tables.save([Transfer(status, status, "s", **given) for status in ("complete", "pending")], now)
    before = feeds["acme"].status()
    assert delete_before(warehouse, datetime(2019, 1, 1, tzinfo=UTC), dry_run=False) == {}
    counts = {"events": 8, "rejected_lines": 1, "feed_polls": 2, "recipients": 2}
    for is_dry, expected in ((True, counts), (False, counts), (False, {})):
        assert delete_before(warehouse, now + timedelta(days=1), dry_run=is_dry) == expected
    after = feeds["acme"].status()
    assert (after.caught_up, after.cursor) == (before.caught_up, before.cursor) == (True, 10)
    for feed in feeds.values():
        assert list(feed.find_problems()) == []
        cursor = feed.read_cursor()
        assert feed.rebuild_cursor() == (cursor, cursor - 1), "the newest page is there"
    assert {row["transfer_id"] for row in personal.find(SEARCH)["recipients"]} == {"pending"}
