"""The state of a feed as properties of a table."""

from __future__ import annotations

import pytest

from outbound_transfer.lake.feed_table import FeedState, list_accounts


@pytest.mark.parametrize("account", ["acme", "a.b.c", "it's", '"', "é 🎉"])
def test_an_account_is_found_by_its_properties(account: str) -> None:
    assert list_accounts(FeedState(cursor=7).as_properties(account)) == [account]
