"""Whatever clients do much of, with and without a key, what is kept stays within the quota: in bytes on the disk."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox

pytestmark = pytest.mark.slow

QUOTA = 1_048_576
BLOCK = 4096
NOBODY = {"Authorization": ""}
FAULT = {"kind": "malformed_json", "path": "/nowhere", "text": "t" * 9_000}


def on_disk(folder: Path) -> int:
    """Bytes of all files, each a whole number of blocks."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return sum(max(1, -(-size // BLOCK)) * BLOCK for size in sizes)


def client(sandbox: Sandbox) -> httpx.Client:
    headers = {"Authorization": f"Bearer {sandbox.transfer_api_key}"}
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.Client(base_url=sandbox.base_url, headers=headers, timeout=600, verify=verify)


def create(http: httpx.Client, length: int, recipients: int = 1) -> httpx.Response:
    people = [{"email": f"{number}@example.com"} for number in range(recipients)]
    return http.post("/v1/transfers", json={"subject": "\x01" * length + "x", "recipients": people})


def attach(http: httpx.Client, draft: str, number: int) -> httpx.Response:
    disposition = f'attachment; filename="{number}{"n" * 2_000}"'
    return http.post(f"{draft}/files", content=b"x" * 2_000, headers={"Content-Disposition": disposition})


#: One of what a client may do much of, by its number and the path of a draft.
KINDS: dict[str, Callable[[httpx.Client, int, str], httpx.Response]] = {
    "calls without a key": lambda http, number, _: http.get(f"/v1/{'x' * 7_999}{number}", headers=NOBODY),
    "large drafts": lambda http, _, __: create(http, 10_000),
    "drafts with many recipients": lambda http, _, __: create(http, 1, 250),
    "files with long names": lambda http, number, draft: attach(http, draft, number),
    "events": lambda http, _, __: http.post("/_sandbox/events", json={"count": 1_000, "type": "t" * 100}),
    "planned faults": lambda http, _, __: http.post("/_sandbox/faults", json=[FAULT] * 10),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_thing_is_bounded(tmp_path: Path, kind: str) -> None:
    with running_sandbox(tmp_path / "data", quota=QUOTA) as sandbox, client(sandbox) as http:
        sandbox.patch_account(requests_per_window=10**9)
        draft = create(http, 1).headers["Location"]
        for number in range(200):
            response = KINDS[kind](http, number, draft)
            assert on_disk(tmp_path / "data") <= QUOTA
            if response.status_code >= 500:
                assert (response.status_code, "disk space" in response.text) == (503, True), response.text
        assert http.get("/v1/transfers").status_code == 200


def test_without_a_quota_the_logs_are_bounded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MAX_LOG_BYTES", 20_000)
    with running_sandbox(tmp_path / "data") as sandbox:
        with client(sandbox) as http:
            for number in range(300):
                http.get(f"/v1/{'x' * 900}{number}", headers=NOBODY)
        rows = sandbox.requests()
        assert 10 < len(rows) < 20
        assert [row["path"][-3:] for row in rows[-2:]] == ["298", "299"]
