"""The counts of an ingest, and how far a page's cursor is beyond its lines."""

from __future__ import annotations

import json

import pytest

from outbound_transfer.client.events import Page, read_page
from outbound_transfer.transfers.feed_ingest import excess_of


def page(body: bytes, next_cursor: int) -> Page:
    headers = {"content-type": "application/x-ndjson", "x-next-cursor": str(next_cursor), "x-has-more": "false"}
    return read_page(headers, body, cursor=10)


@pytest.mark.parametrize(
    ("ids", "next_cursor", "excess"),
    [
        (["11", "12", "15"], 15, 0),
        (["11", "12", "15"], 1_000_000, 1_000_000 - 15),
        (["e1", "e2"], 12, 0),
        (["e1", "e2"], 13, 1),
        (["11", "e2"], 12, 0),
        (["5", "6"], 12, 0),
        ([], 10, 0),
        ([], 11, 1),
        (["9" * 400], 11, 0),
    ],
)
def test_a_cursor_is_compared_with_what_the_lines_account_for(ids: list[str], next_cursor: int, excess: int) -> None:
    body = b"".join(json.dumps({"event_id": each, "type": "t"}).encode() + b"\n" for each in ids)
    assert excess_of(page(body, next_cursor)) == excess
    if ids:
        assert excess_of(page(body + b"junk\n", next_cursor + 1)) == excess
