"""Keys, users and what they may do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.rule("R6 to R9")

CALLS = [
    ("POST", "/v1/transfers"), ("GET", "/v1/transfers"), ("GET", "/v1/transfers/x"),
    ("POST", "/v1/transfers/x/files"), ("GET", "/v1/transfers/x/files"), ("GET", "/v1/transfers/x/files/y"),
    ("DELETE", "/v1/transfers/x/files/y"), ("DELETE", "/v1/transfers/x"), ("POST", "/v1/transfers/x/send"),
]  # fmt: skip


@pytest.mark.rule("R6")
@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_endpoint_needs_a_key(api: Any, refused: Any, method: str, path: str) -> None:
    refused(api.http.request(method, path, headers={"Authorization": ""}), 401, "invalid_api_key")


@pytest.mark.rule("R7: 401")
@pytest.mark.parametrize(
    "form", ["", "Bearer", "{key}", "Basic {key}", "Bearer {key}x", "Bearer {key} x", "Bearer {event}"]
)
def test_malformed_or_unknown_keys(api: Any, refused: Any, form: str) -> None:
    header = form.format(key=api.key, event=api.event_key)
    refused(api.http.get("/v1/transfers", headers={"Authorization": header}), 401, "invalid_api_key")


def test_missing_and_repeated_header(api: Any, refused: Any) -> None:
    refused(httpx.get(f"{api.base_url}/v1/transfers"), 401, "invalid_api_key")
    twice = [("Authorization", f"Bearer {api.key}")] * 2
    refused(httpx.get(f"{api.base_url}/v1/transfers", headers=twice), 401, "invalid_api_key")
    refused(
        httpx.get(f"{api.base_url}/v1/transfers", headers={"Authorization": b"Bearer \xff\xfe"}), 401, "invalid_api_key"
    )


def test_the_scheme_is_case_insensitive(api: Any) -> None:
    assert api.http.get("/v1/transfers", headers={"Authorization": f"bearer {api.key}"}).status_code == 200


@pytest.mark.rule("R6, R9: prefixes")
def test_prefixes(service: Any) -> None:
    assert service.event_api_key.startswith("obs_")
    assert not service.transfer_api_key.startswith("obs_")
    assert re.match("[a-z]+_", service.transfer_api_key)


@pytest.mark.rule("R7, R8: revoked keys")
def test_revoked_key(api: Any, control: Any, with_key: Callable[..., Any], refused: Any) -> None:
    other = with_key(control.new_key(control.state()["user"]))
    transfer = api.sent()["id"]
    control.revoke_key(api.key)
    refused(api.http.get("/v1/transfers"), 401, "invalid_api_key")
    assert other.ids() == [transfer]


@pytest.mark.rule("R7: deactivated users")
def test_deactivated_user(api: Any, control: Any, refused: Any) -> None:
    user = control.state()["user"]
    control.patch_user(user, active=False)
    refused(api.http.get("/v1/transfers"), 401, "invalid_api_key")
    control.patch_user(user, active=True)
    assert api.http.get("/v1/transfers").status_code == 200


@pytest.mark.rule("R4")
def test_another_users_transfers_do_not_exist(
    api: Any, control: Any, with_key: Callable[..., Any], refused: Any
) -> None:
    bob = with_key(control.new_key("bob@example.com"))
    sent, draft = api.sent(), api.draft()
    file = api.attached(draft["id"])["id"]
    for transfer, file_id in ((sent["id"], sent["files"][0]["id"]), (draft["id"], file)):
        path = f"/v1/transfers/{transfer}"
        for method, rest in [
            *[("GET", ""), ("DELETE", ""), ("GET", "/files"), ("POST", "/send")],
            *[("GET", f"/files/{file_id}"), ("DELETE", f"/files/{file_id}")],
        ]:
            refused(bob.http.request(method, path + rest), 404, "not_found")
        refused(bob.attach(transfer), 404, "not_found")
    assert bob.ids() == []
    mine = bob.sent()["id"]
    assert bob.ids() == [mine]
    assert api.ids() == [sent["id"]]


@pytest.mark.rule("R7: 403")
@pytest.mark.parametrize(("method", "path"), CALLS)
def test_grants(api: Any, control: Any, refused: Any, method: str, path: str) -> None:
    def call() -> httpx.Response:
        return api.http.request(method, path)

    user = control.state()["user"]
    control.patch_user(user, sending_permitted=False)
    refused(call(), 403, "sending_not_permitted")
    control.patch_user(user, api_permitted=False)
    refused(call(), 403, "api_not_permitted")
    control.patch_account(outgoing_enabled=False)
    refused(call(), 403, "api_not_enabled")
    control.patch_account(outgoing_enabled=True, api_enabled=False)
    refused(call(), 403, "api_not_enabled")
    control.revoke_key(api.key)
    refused(call(), 401, "invalid_api_key")


def test_keys_with_fewer_grants(control: Any, with_key: Callable[..., Any], refused: Any) -> None:
    reader = with_key(control.new_key("carl@example.com", api_permitted=False))
    refused(reader.http.get("/v1/transfers"), 403, "api_not_permitted")
    reader = with_key(control.new_key("dora@example.com", sending_permitted=False))
    refused(reader.http.get("/v1/transfers"), 403, "sending_not_permitted")


@pytest.mark.rule("R9: prefix and 401")
@pytest.mark.parametrize("form", ["", "Bearer", "Bearer {key}", "Bearer {event}x", "Basic {event}"])
def test_feed_key(api: Any, form: str) -> None:
    header = form.format(key=api.key, event=api.event_key)
    assert api.http.get("/v1/events", headers={"Authorization": header}).status_code == 401


@pytest.mark.rule("R9: one active key")
def test_a_new_event_key_revokes_the_old_one(api: Any, control: Any) -> None:
    new = control.new_event_key()
    assert new.startswith("obs_")
    assert api.events().status_code == 401
    api.event_key = new
    assert api.events().status_code == 200


@pytest.mark.rule("R9: not a transfer key")
def test_the_feed_asks_nothing_of_the_transfer_interface(api: Any, control: Any) -> None:
    control.patch_account(api_enabled=False)
    control.revoke_key(api.key)
    assert api.events().status_code == 200


@pytest.mark.rule("R9: only a hash is stored")
def test_no_key_is_kept_in_clear(api: Any, control: Any, data_dir: Any) -> None:
    keys = [api.key, api.event_key, control.new_key("bob@example.com"), control.new_event_key()]
    api.sent()
    for path in data_dir.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [key for key in keys if key.encode() in content], path
