"""The control API: its settings, its logs, and who may use it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.control import routes as control_api
from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.testing import running_sandbox

REPOSITORY = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_every_call_is_documented() -> None:
    documented = re.findall(r"^\| `([A-Z]+ /\S+)` \|", (REPOSITORY / "docs/sandbox.md").read_text(), re.MULTILINE)
    assert documented == [
        f"{method} {route.path}" for route in control_api.mount.routes for method in route.methods - {"HEAD"}
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"api_enabled": False, "outgoing_enabled": False}, {"plan": "free", "recipients_per_transfer": 9},
        {"per_file_limit_mb": 1, "delivery_window_days": 7, "outstanding_transfer_limit": 0},
        {"billing": "per_transfer", "credits": 3}, {"scheduled_sends": 7}, {"auto_pickup_seconds": 0.5},
        {"security_options": ["email"], "default_security": "email"},
        {"requests_per_window": 5, "window_seconds": 2.5, "feed_interval_seconds": 0},
    ],
)  # fmt: skip
def test_every_setting_can_be_changed(control: Any, settings: dict[str, Any]) -> None:
    before = control.state()["account"]
    assert control.patch_account(**settings) == {**before, **settings}
    assert control.state()["account"] == {**before, **settings}


@pytest.mark.parametrize(
    "settings",
    [
        {"plan": "gold"}, {"recipients_per_transfer": 251}, {"recipients_per_transfer": 0},
        {"per_file_limit_mb": "100"}, {"window_seconds": 0}, {"requests_per_window": 0},
        {"feed_interval_seconds": -1}, {"auto_pickup_seconds": -1}, {"security_options": ["email"]},
        {"default_security": "fax"}, {"colour": "blue"}, {"api_enabled": None},
    ],
)  # fmt: skip
def test_wrong_settings_change_nothing(control: Any, settings: dict[str, Any]) -> None:
    before = control.state()["account"]
    with pytest.raises(httpx.HTTPStatusError, match=f"400 .*{next(iter(settings))}"):
        control.patch_account(**settings)
    assert control.state()["account"] == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("keys", {"user": ""}), ("keys", {"user": "bob@example.com", "colour": "blue"}), ("keys/revoke", {}),
        ("transfers/none/pickup", {"email": 1}), ("faults", {"kind": "reset"}), ("faults", [{"kind": "nonsense"}]),
        ("events", {"count": 0}), ("events", {"count": 10**9}), ("events", {"count": "many"}),
        ("clock", {"advance_seconds": -1}), ("clock", {"advance_seconds": "1"}), ("clock", {"advance_seconds": 1e15}),
        ("clock", {}),
    ],
)  # fmt: skip
def test_a_body_that_makes_no_sense_is_refused(control: Any, path: str, body: Any) -> None:
    before = when(control.state()["clock"])
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        control.call("POST", path, body)
    assert control.faults() == []
    assert control.add_events(1) == 1
    assert timedelta(0) <= when(control.state()["clock"]) - before < timedelta(minutes=1)


def test_anybodys_transfer_can_be_seen_and_counts_for_no_rate(api: Any, control: Any, with_key: Any) -> None:
    control.patch_account(requests_per_window=3)
    transfer = with_key(control.new_key("bob@example.com")).sent()
    for _ in range(5):
        assert control.transfer(transfer["id"]) == transfer
    assert control.transfer(api.draft()["id"])["status"] == "draft"
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        control.transfer("none")


def test_a_draft_keeps_its_status(api: Any, control: Any) -> None:
    for transfer, status in ((api.draft(), "pending"), (api.sent(), "draft")):
        with pytest.raises(httpx.HTTPStatusError, match="409"):
            control.set_stored_status(transfer["id"], status)


def test_the_clock_goes_forward_and_one_transfer_can_expire_before_the_others(api: Any, control: Any) -> None:
    before = when(control.state()["clock"])
    soon, later = api.sent(), api.sent()
    control.set_expiry(soon["id"], 3599)
    assert timedelta(hours=1) <= when(control.advance_clock(3600)) - before < timedelta(hours=1, minutes=1)
    assert [api.get(one["id"])["status"] for one in (soon, later)] == ["expired", "pending"]


@pytest.mark.parametrize(
    "header",
    [
        *(
            "Host: evil.example",
            "Host: evil.example:80",
            "Host: 127.0.0.1.evil.example",
            "Host: [::2]",
            "Host: 0.0.0.0",
        ),
        *("Origin: https://evil.example", "Origin: null", "Origin: http://localhost:3000", "Origin: "),
        *("Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"),
        # A proxy rewrites Host to ours and connects from this machine.
        *("X-Forwarded-For: 203.0.113.9", "Forwarded: for=203.0.113.9", "Via: 1.1 proxy", "X-Real-IP: 203.0.113.9"),
        *("CF-Connecting-IP: 203.0.113.9", "X-Original-URL: /_sandbox/state"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "event-key"), ("DELETE", "faults"), ("GET", "state")])
def test_a_request_from_another_machine_or_site_is_refused(
    control: Any, api: Any, method: str, path: str, header: str, refused: Any
) -> None:
    """All of these need no body, so that any page may send them without asking first."""
    control.plan_faults({"kind": "reset", "path": "/nowhere"})
    name, _, value = header.partition(": ")
    response = httpx.request(method, f"{control.base_url}/_sandbox/{path}", headers={name: value})
    refused(response, 403, "forbidden")
    assert api.events().status_code == 200
    assert len(control.faults()) == 1


def test_loopback_names_and_our_own_page_are_served(control: Any) -> None:
    hosts = ("localhost", "localhost:99", "127.0.0.1", "127.9.9.9:1", "[::1]:80")
    for headers in ({"Sec-Fetch-Site": "none"}, *({"Host": host} for host in hosts)):
        assert httpx.get(f"{control.base_url}/_sandbox/state", headers=headers).status_code == 200, headers
    own = {"Origin": control.base_url, "Sec-Fetch-Site": "same-origin"}
    assert httpx.post(f"{control.base_url}/_sandbox/faults/release", headers=own).status_code == 200


def test_the_log_of_requests_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MAX_LOG_BYTES", 20_000)
    with running_sandbox(tmp_path / "data") as sandbox, httpx.Client(base_url=sandbox.base_url) as http:
        for number in range(100):
            http.get(f"/v1/{'x' * 900}{number}")
        rows = sandbox.requests()
    assert 10 < len(rows) < 20
    assert [row["path"][-2:] for row in rows[-2:]] == ["98", "99"]
