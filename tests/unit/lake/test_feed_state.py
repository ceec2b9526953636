"""The state of a feed as properties of a table."""

from __future__ import annotations

import pytest

from outbound_transfer.lake.feed_state import FeedState, LastPoll, list_accounts, read_last_poll, read_state
from outbound_transfer.protocol.events import MAX_CURSOR, Event, Page
from outbound_transfer.warehouse.errors import InvalidCursor, UnusableTable

CURSOR, FEED = "outbound-transfer.cursor.acme", "outbound-transfer.feed.acme"


def page(cursor: int, next_cursor: int, lines: int) -> Page:
    events = tuple(Event(f"e{number}", "t", None, None, None, number) for number in range(1, lines + 1))
    return Page(cursor, next_cursor, True, events, ())


@pytest.mark.parametrize("account", ["acme", "a.b.c", "it's", '"', "é 🎉"])
def test_a_state_is_read_back_as_it_was_written(account: str) -> None:
    state = FeedState(cursor=7, commit="c", updated_at="now", rows_from=3, rows_to=7, excess=2, claim=(7, 9))
    poll = LastPoll(polled_at="now", status=200, has_more=True, events=1, rejected=0)
    properties = state.as_properties(account) | poll.as_properties(account)
    assert read_state(properties, account) == state
    assert read_last_poll(properties, account) == poll
    assert list_accounts(properties) == [account]
    assert read_state(properties, "other") == FeedState()


def test_the_newest_page_with_rows_is_remembered_over_pages_without() -> None:
    state = FeedState(cursor=0).after(page(0, 10, 3)).after(page(10, 14, 0))
    assert (state.cursor, state.rows_from, state.rows_to, state.excess) == (14, 0, 10, 7)


def test_a_claim_is_of_one_position_and_ends_with_the_page() -> None:
    state = FeedState(cursor=5).with_claim(5, 100).with_claim(5, 90)
    assert (state.greatest_claim(5), state.greatest_claim(6)) == (100, 0)
    assert state.with_claim(6, 7).greatest_claim(5) == 0
    assert state.after(page(5, 6, 1)).claim is None


def test_the_greatest_cursor_is_one() -> None:
    assert read_state({CURSOR: str(MAX_CURSOR)}, "acme").cursor == MAX_CURSOR


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "1e3", "x", "٣", str(MAX_CURSOR + 1), "9" * 5_000])
def test_a_cursor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor, match=CURSOR):
        read_state({CURSOR: text}, "acme")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"claim": [1]}',
        '{"excess": "x"}',
        "\ud800",
        pytest.param('{"x":' + "[" * 50_000, id="deep"),
    ],
)
def test_a_state_of_somebody_else_is_refused(text: str) -> None:
    with pytest.raises(UnusableTable, match=FEED):
        read_state({CURSOR: "1", FEED: text}, "acme")
