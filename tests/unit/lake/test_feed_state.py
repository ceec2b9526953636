"""The state of a feed as properties of a table."""

from __future__ import annotations

import pytest

from outbound_transfer.lake.feed_state import FeedState, list_accounts
from outbound_transfer.protocol.events import Event, Page


def page(cursor: int, next_cursor: int, lines: int) -> Page:
    events = tuple(Event(f"e{number}", "t", None, None, None, number) for number in range(1, lines + 1))
    return Page(cursor, next_cursor, True, events, ())


@pytest.mark.parametrize("account", ["acme", "a.b.c", "it's", '"', "é 🎉"])
def test_an_account_is_found_by_its_properties(account: str) -> None:
    assert list_accounts(FeedState(cursor=7).as_properties(account)) == [account]


def test_the_greatest_excess_of_the_pages_is_remembered() -> None:
    state = FeedState(cursor=0).after(page(0, 10, 3)).after(page(10, 14, 0))
    assert (state.cursor, state.has_more, state.excess) == (14, True, 7)


def test_a_claim_is_of_one_position_and_ends_with_the_page() -> None:
    state = FeedState(cursor=5).with_claim(5, 100).with_claim(5, 90)
    assert (state.greatest_claim(5), state.greatest_claim(6)) == (100, 0)
    assert state.with_claim(6, 7).greatest_claim(5) == 0
    assert state.after(page(5, 6, 1)).claim is None
