"""The two rates, by the service's own clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.rule("R53")


def test_sixty_requests_per_minute(api: Any, refused: Any) -> None:
    for _ in range(60):
        assert api.http.get("/v1/transfers").status_code == 200
    response = api.http.get("/v1/transfers")
    refused(response, 429, "rate_limited")
    assert 1 <= int(response.headers["retry-after"]) <= 60


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


def test_retry_after_is_the_way_back_in(api: Any, control: Any, refused: Any) -> None:
    control.patch_account(requests_per_window=2)
    api.http.get("/v1/transfers")
    control.advance_clock(20)
    api.http.get("/v1/transfers")
    wait = int(api.http.get("/v1/transfers").headers["retry-after"])
    assert 39 <= wait <= 40
    control.advance_clock(wait - 2)
    refused(api.http.get("/v1/transfers"), 429, "rate_limited")
    control.advance_clock(2)
    assert api.http.get("/v1/transfers").status_code == 200
    assert 15 <= int(api.http.get("/v1/transfers").headers["retry-after"]) <= 20


def test_what_was_refused_for_its_rate_does_not_count(api: Any, control: Any) -> None:
    control.patch_account(requests_per_window=1)
    api.http.get("/v1/transfers")
    control.advance_clock(50)
    for _ in range(5):
        assert api.http.get("/v1/transfers").status_code == 429
    control.advance_clock(11)
    assert api.http.get("/v1/transfers").status_code == 200


@pytest.mark.rule("R8: rate")
def test_each_key_has_its_own_window(api: Any, control: Any, with_key: Callable[..., Any]) -> None:
    control.patch_account(requests_per_window=1)
    other = with_key(control.new_key(control.state()["user"]))
    assert api.http.get("/v1/transfers").status_code == 200
    assert api.http.get("/v1/transfers").status_code == 429
    assert other.http.get("/v1/transfers").status_code == 200


@pytest.mark.rule("R52")
def test_a_draft_of_many_files_fits_after_waiting(api: Any, control: Any) -> None:
    control.patch_account(requests_per_window=5)
    transfer = api.draft()["id"]
    for number in range(9):
        while (response := api.attach(transfer, f"{number}.txt")).status_code == 429:
            control.advance_clock(int(response.headers["retry-after"]))
        assert response.status_code == 201
    control.advance_clock(60)
    assert len(api.get(transfer)["files"]) == 9


@pytest.mark.rule("R58")
def test_one_successful_feed_call_per_minute(api: Any, control: Any) -> None:
    assert api.events().status_code == 200
    response = api.events()
    assert response.status_code == 429
    wait = int(response.headers["retry-after"])
    assert 59 <= wait <= 60
    control.advance_clock(wait - 2)
    assert api.events().status_code == 429
    control.advance_clock(2)
    assert api.events().status_code == 200


@pytest.mark.rule("R58: one successful request")
def test_failed_feed_calls_cost_nothing(api: Any) -> None:
    assert api.events(cursor="x").status_code == 400
    assert api.events(limit=0).status_code == 400
    assert api.http.get("/v1/events").status_code == 401
    assert api.events().status_code == 200


@pytest.mark.rule("R45")
def test_a_new_event_key_brings_no_new_minute(api: Any, control: Any) -> None:
    assert api.events().status_code == 200
    api.event_key = control.new_event_key()
    assert api.events().status_code == 429
