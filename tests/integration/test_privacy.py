"""Personal data: a person is found, erased everywhere and never brought back; which columns have people; age."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from outbound_transfer.client.events import Page
from outbound_transfer.client.models import Recipient, Transfer
from outbound_transfer.store.destination import EventDestination
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


class Destination(NamedTuple):
    """The tables of a database, opened anew each time."""

    feed: Callable[[], EventDestination]
    personal: PersonalData

    def load(self, *pages: Page) -> None:
        for each in pages:
            feed = self.feed()
            assert feed.get_or_create_cursor() == each.cursor
            feed.load_page(each)

    def read_again(self, *pages: Page) -> None:
        cursor = self.feed().read_cursor()
        self.load(*(each for each in pages if each.cursor >= cursor))
        self.check_gone()

    def check_gone(self) -> None:
        assert self.personal.find(SEARCH) == {}
        assert list(self.feed().find_problems()) == []


@pytest.fixture(params=["sqlite", "duckdb", "psycopg", "mysqlclient"])
def location(request: pytest.FixtureRequest, hook_of: Any) -> Destination:
    warehouse = Tables(hook_of(request.param))

    return Destination(lambda: EventStore(warehouse, "acme"), personal_data_of(warehouse, request.param))


def test_who_is_erased_is_found_nowhere_and_what_is_read_again_is_known(location: Destination) -> None:
    location.load(*PAGES)
    before, rows = location.feed().status(), location.personal.find(SEARCH)
    assert {table: len(found) for table, found in rows.items()} == CHANGED

    assert location.personal.erase(SEARCH) == {table: len(found) for table, found in rows.items()}

    location.check_gone()
    assert location.personal.erase(SEARCH) == {}
    for other in OTHERS:
        assert location.personal.find(AddressSearch(other)), other
    assert "Quasi M." in str(location.personal.find(AddressSearch("bob@example.com"))), "of a file, not of the person"
    assert location.feed().status() == before, "nor did the cursor move"
    # The service still has the person: pages come again, also cut otherwise.
    location.feed().rebuild_cursor()
    location.read_again(*PAGES)
    for pages in (PAGES, (page(0, *LINES[:4], has_more=True), page(4, *LINES[4:], has_more=True), *PAGES[1:])):
        location.feed().reset(0)
        location.read_again(*pages)
        assert (location.feed().status().events, location.feed().status().rejected) == (9, 1)
    location.load(page(10, event(10, data={"to": ADDRESS})))
    assert location.personal.erase(SEARCH) == {"events": 1}, "what is new is new, even if its content is not"
    location.check_gone()


def test_another_event_of_an_erased_id_is_another(location: Destination) -> None:
    """An id is no identity: what is sent to somebody else is not the erased event."""
    first, second = event(0, data={"to": ADDRESS}), event(0, data={"to": "bob@example.com"})
    pages = page(0, first, has_more=True), page(1, second, has_more=True), page(2, event(2))
    location.load(*pages)
    location.personal.erase(SEARCH)
    location.feed().reset(0)
    location.load(*pages)
    assert location.personal.find(AddressSearch("bob@example.com"))
    assert location.personal.find(SEARCH) == {}


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "psycopg", "mysqlclient"])
def test_what_is_old_goes_and_the_feed_stands_where_it_did(hook_of: Any, kind: str) -> None:
    warehouse, now = Tables(hook_of(kind)), datetime.now(UTC)
    store, personal = EventStore(warehouse, "acme"), personal_data_of(warehouse, kind)
    other = EventStore(warehouse, "other")
    for feed, pages in ((store, PAGES), (other, (page(0, event(0)),))):
        for each in pages:
            feed.get_or_create_cursor()
            feed.load_page(each)
        for _ in range(2):
            feed.load_page(page(each.next_cursor))
    for status in ("complete", "pending"):
        sent = Transfer(status, status, "s", recipients=(Recipient(ADDRESS),), sent_at="2020-01-01T00:00:00Z")
        for account in ("acme", "other"):
            tables = TransferTables(warehouse, account, "conn")
            tables.sync_state()
            tables.save([sent], now)
    before = store.status()
    assert delete_before(warehouse, datetime(2019, 1, 1, tzinfo=UTC), dry_run=False) == {}
    counts = delete_before(warehouse, now + timedelta(days=1), dry_run=True)
    assert delete_before(warehouse, now + timedelta(days=1), dry_run=False) == counts == {
        "events": 8, "rejected_lines": 1, "feed_polls": 2, "recipients": 2,
    }  # fmt: skip
    assert delete_before(warehouse, now + timedelta(days=1), dry_run=False) == {}
    after = store.status()
    assert (after.caught_up, after.cursor) == (before.caught_up, before.cursor) == (True, 10)
    for feed in (store, other):
        assert list(feed.find_problems()) == []
        cursor = feed.read_cursor()
        assert feed.rebuild_cursor() == (cursor, cursor - 1), "the newest page is there"
    assert {row["transfer_id"] for row in personal.find(SEARCH)["recipients"]} == {"pending"}
