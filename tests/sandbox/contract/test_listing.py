"""GET /v1/transfers: order, pages, filters."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.rule("R26"), pytest.mark.usefixtures("unlimited")]


@pytest.mark.rule("R14; R11: files")
def test_lists_without_files(api: Any) -> None:
    sent = api.sent(message="Hello")
    listed = api.page()["data"][0]
    assert listed == {name: value for name, value in sent.items() if name != "files"}


@pytest.mark.rule("R26: limit")
def test_limit_is_clamped(api: Any) -> None:
    for _ in range(101):
        api.sent()
    shown = {None: 25, "26": 26, "1": 1, "0": 1, "-7": 1, "100": 100, "101": 100, "1000": 100, "9" * 400: 100}
    pages = {limit: api.page(**({} if limit is None else {"limit": limit})) for limit in shown}
    assert {limit: len(page["data"]) for limit, page in pages.items()} == shown
    assert all(page["next_cursor"] is not None for page in pages.values())


@pytest.mark.rule("R26: limit, cursor, status")
@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", each) for each in ("", "ten", "1.5", "1e2", "0x10", "1_0", " 1", "٣", "NaN", ["1", "2"])]
    + [("cursor", each) for each in ("", "x", "0", "AAAA", "ÿ", "A" * 32 + "=", "A" * 10_000)]
    + [("status", each) for each in ("draft", "unknown", "", "PENDING", "pending,partial", "sent")],
    ids=lambda value: str(value)[:40],
)
def test_a_parameter_that_means_nothing_is_named(api: Any, refused: Any, name: str, value: Any) -> None:
    assert name in refused(api.http.get("/v1/transfers", params={name: value}), 400, "invalid_request")


def pages(api: Any, cursor: str | None, **params: Any) -> list[list[str]]:
    """The ids of the pages from a cursor on."""
    found = []
    while cursor is not None or not found:
        page = api.page(**params, **({"cursor": cursor} if cursor else {}))
        found.append([transfer["id"] for transfer in page["data"]])
        cursor = page["next_cursor"]
    return found


@pytest.mark.rule("R26: cursor")
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
def test_pages_cover_everything_once(api: Any, limit: int) -> None:
    sent = [api.sent()["id"] for _ in range(5)]
    listed = pages(api, None, limit=limit)
    assert sum(listed, []) == sent[::-1]
    assert all(len(page) == limit for page in listed[:-1])
    assert listed[-1]


@pytest.mark.rule("R27")
def test_sent_during_paging(api: Any) -> None:
    old = [api.sent()["id"] for _ in range(3)]
    first = api.page(limit=2)
    late = [api.sent()["id"] for _ in range(2)]
    assert [transfer["id"] for transfer in first["data"]] == [old[2], old[1]]
    assert pages(api, first["next_cursor"], limit=2) == [[old[0]], [late[1], late[0]]]
    assert api.ids() == [*late[::-1], *old[::-1]]


@pytest.mark.rule("R28")
def test_a_filter_drops_from_later_pages_what_stops_matching_and_all_loses_nothing(api: Any, control: Any) -> None:
    sent = [api.sent()["id"] for _ in range(4)]
    filtered, everything = api.page(status="pending", limit=2), api.page(limit=2)
    for collected in (sent[1], sent[3]):
        control.pickup(collected, "ann@example.com")
    assert api.ids(status="pending", limit=2, cursor=filtered["next_cursor"]) == [sent[0]]
    assert api.ids(limit=2, cursor=everything["next_cursor"]) == [sent[1], sent[0]]
