"""GET /v1/transfers: order, pages, filters."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest

pytestmark = pytest.mark.rule("R26")


@pytest.fixture(autouse=True)
def _no_rate(unlimited: None) -> None:
    """Listing is the subject here, not its rate."""


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


@pytest.mark.rule("R26: limit")
@pytest.mark.parametrize("limit", ["", "ten", "1.5", "1e2", "0x10", "1_0", " 1", "٣", "NaN"])
def test_limit_that_is_no_integer(api: Any, refused: Any, limit: str) -> None:
    response = api.http.get("/v1/transfers", params={"limit": limit})
    assert "limit" in refused(response, 400, "invalid_request")


@pytest.mark.rule("R26: cursor")
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
def test_pages_cover_everything_once(api: Any, limit: int) -> None:
    sent = [api.sent()["id"] for _ in range(5)]
    listed, cursor = [], None
    for _ in range(10):
        page = api.page(limit=limit, **({"cursor": cursor} if cursor else {}))
        listed.append([transfer["id"] for transfer in page["data"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert functools.reduce(operator.iadd, listed, []) == sent[::-1]
    assert all(len(page) == limit for page in listed[:-1])
    assert listed[-1]


@pytest.mark.parametrize("cursor", ["", "x", "0", "AAAA", "ÿ", "A" * 32 + "=", "A" * 10_000])
def test_cursor_that_was_never_given_out(api: Any, refused: Any, cursor: str) -> None:
    response = api.http.get("/v1/transfers", params={"cursor": cursor})
    assert "cursor" in refused(response, 400, "invalid_request")


@pytest.mark.rule("R27")
def test_sent_during_paging(api: Any) -> None:
    old = [api.sent()["id"] for _ in range(3)]
    first = api.page(limit=2)
    late = [api.sent()["id"] for _ in range(2)]
    pages, cursor = [], first["next_cursor"]
    while cursor:
        page = api.page(limit=2, cursor=cursor)
        pages.append([transfer["id"] for transfer in page["data"]])
        cursor = page["next_cursor"]
    assert [transfer["id"] for transfer in first["data"]] == [old[2], old[1]]
    assert pages == [[old[0]], [late[1], late[0]]]
    assert api.ids() == [*late[::-1], *old[::-1]]


@pytest.mark.parametrize("status", ["draft", "unknown", "", "PENDING", "pending,partial", "sent"])
def test_status_that_cannot_be_filtered_by(api: Any, refused: Any, status: str) -> None:
    response = api.http.get("/v1/transfers", params={"status": status})
    assert "status" in refused(response, 400, "invalid_request")


@pytest.mark.rule("R28")
def test_what_stops_matching_is_gone_from_later_pages(api: Any, control: Any) -> None:
    sent = [api.sent()["id"] for _ in range(4)]
    first = api.page(status="pending", limit=2)
    control.pickup(sent[1], "ann@example.com")
    assert api.ids(status="pending", limit=2, cursor=first["next_cursor"]) == [sent[0]]


@pytest.mark.rule("R28: status=all")
def test_all_loses_nothing_while_statuses_change(api: Any, control: Any) -> None:
    sent = [api.sent()["id"] for _ in range(4)]
    first = api.page(limit=2)
    control.pickup(sent[1], "ann@example.com")
    control.pickup(sent[3], "ann@example.com")
    assert api.ids(limit=2, cursor=first["next_cursor"]) == [sent[1], sent[0]]


def test_repeated_parameter(api: Any, refused: Any) -> None:
    assert "limit" in refused(api.http.get("/v1/transfers?limit=1&limit=2"), 400, "invalid_request")
