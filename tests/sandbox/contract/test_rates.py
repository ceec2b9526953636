"""The two rates, by the service's own clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.rule("R53")


@pytest.mark.rule("R8: rate")
def test_sixty_requests_per_minute_and_key(api: Any, control: Any, with_key: Callable[..., Any], refused: Any) -> None:
    for _ in range(60):
        assert api.http.get("/v1/transfers").status_code == 200
    response = api.http.get("/v1/transfers")
    refused(response, 429, "rate_limited")
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert with_key(control.new_key(control.state()["user"])).ids() == []


def test_requests_of_every_kind_count(api: Any, control: Any, refused: Any) -> None:
    """A success, a refusal and an upload count alike, whatever endpoint they go to."""
    control.patch_account(requests_per_window=9)
    transfer = api.draft()["id"]
    file = api.attached(transfer)["id"]
    path = f"/v1/transfers/{transfer}"
    for method, rest in [("GET", ""), ("GET", "/files"), ("GET", f"/files/{file}"), ("POST", "/send"), ("DELETE", "")]:
        api.http.request(method, path + rest)
    api.create(subject="")
    api.http.get("/v1/transfers/none")
    for call in (api.create, lambda: api.http.get("/v1/transfers"), lambda: api.attach(transfer)):
        refused(call(), 429, "rate_limited")


def test_retry_after_is_the_way_back_in_and_refusals_do_not_count(api: Any, control: Any) -> None:
    def status() -> int:
        return int(api.http.get("/v1/transfers").status_code)

    control.patch_account(requests_per_window=2)
    status()
    control.advance_clock(20)
    status()
    wait = int(api.http.get("/v1/transfers").headers["retry-after"])
    assert 39 <= wait <= 40
    control.advance_clock(wait - 2)
    assert [status() for _ in range(5)] == [429] * 5
    control.advance_clock(2)
    assert status() == 200
    assert 15 <= int(api.http.get("/v1/transfers").headers["retry-after"]) <= 20


@pytest.mark.rule("R45, R58")
def test_one_successful_feed_call_per_minute(api: Any, control: Any) -> None:
    for failed in (api.events(cursor="x"), api.events(limit=0), api.http.get("/v1/events")):
        assert failed.status_code in (400, 401)
    assert api.events().status_code == 200, "failures cost nothing"
    response = api.events()
    assert response.status_code == 429
    wait = int(response.headers["retry-after"])
    assert 59 <= wait <= 60
    control.advance_clock(wait - 2)
    api.event_key = control.new_event_key()
    assert api.events().status_code == 429, "a new key brings no new minute"
    control.advance_clock(2)
    assert api.events().status_code == 200
