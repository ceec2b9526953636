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


@pytest.mark.rule("R6; R7: 401; R9: prefix and 401")
def test_a_malformed_missing_repeated_or_unknown_key_is_refused(api: Any, refused: Any) -> None:
    url, keys = f"{api.base_url}/v1/transfers", {"key": api.key, "event": api.event_key}
    wrong: list[Any] = [{}, {"Authorization": b"Bearer \xff\xfe"}, [("Authorization", f"Bearer {api.key}")] * 2]
    forms = ("", "Bearer", "{key}", "Basic {key}", "Bearer {key}x", "Bearer {key} x", "Bearer {event}")
    wrong += [{"Authorization": form.format(**keys)} for form in forms]
    for headers in wrong:
        refused(httpx.get(url, headers=headers), 401, "invalid_api_key")
    for form in ("", "Bearer", "Bearer {key}", "Bearer {event}x", "Basic {event}"):
        headers = {"Authorization": form.format(**keys)}
        assert httpx.get(f"{api.base_url}/v1/events", headers=headers).status_code == 401, form
    assert httpx.get(url, headers={"Authorization": f"bearer {api.key}"}).status_code == 200, "in any case"
    assert api.event_key.startswith("obs_")
    assert re.match("(?!obs_)[a-z]+_", api.key)


@pytest.mark.rule("R7, R8: revoked keys and deactivated users")
def test_a_revoked_key_or_a_deactivated_user_is_refused(
    api: Any, control: Any, with_key: Callable[..., Any], refused: Any
) -> None:
    user = control.state()["user"]
    other = with_key(control.new_key(user))
    transfer = api.sent()["id"]
    control.revoke_key(api.key)
    refused(api.http.get("/v1/transfers"), 401, "invalid_api_key")
    assert other.ids() == [transfer]
    control.patch_user(user, active=False)
    refused(other.http.get("/v1/transfers"), 401, "invalid_api_key")
    control.patch_user(user, active=True)
    assert other.ids() == [transfer]


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
    mine = bob.sent()["id"]
    assert bob.ids() == [mine]
    assert api.ids() == [sent["id"]]


@pytest.mark.rule("R6; R7: 403")
@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_endpoint_needs_each_grant_and_a_key(
    api: Any, control: Any, refused: Any, method: str, path: str
) -> None:
    def is_refused(status: int, code: str) -> None:
        refused(api.http.request(method, path), status, code)

    user = control.state()["user"]
    control.patch_user(user, sending_permitted=False)
    is_refused(403, "sending_not_permitted")
    control.patch_user(user, api_permitted=False)
    is_refused(403, "api_not_permitted")
    control.patch_account(outgoing_enabled=False)
    is_refused(403, "api_not_enabled")
    control.patch_account(outgoing_enabled=True, api_enabled=False)
    is_refused(403, "api_not_enabled")
    control.revoke_key(api.key)
    is_refused(401, "invalid_api_key")


def test_a_key_is_made_with_fewer_grants(control: Any, with_key: Callable[..., Any], refused: Any) -> None:
    for grant in ("api_permitted", "sending_permitted"):
        reader = with_key(control.new_key(f"{grant}@example.com", **{grant: False}))
        refused(reader.http.get("/v1/transfers"), 403, grant.replace("_", "_not_"))


@pytest.mark.rule("R9: one active key, not a transfer key")
def test_the_feed_needs_the_newest_event_key_and_nothing_of_the_transfer_interface(api: Any, control: Any) -> None:
    new = control.new_event_key()
    assert api.events().status_code == 401
    api.event_key = new
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
