"""Transfers that somebody else sends: by plain HTTP, with a key whose calls are not those of the connection's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from outbound_transfer_sandbox.testing import Sandbox

ANN, BOB = "ann@example.com", "bob@example.com"


def send(sandbox: Sandbox, count: int = 1, *recipients: str, subject: str = "Report", user: str = "") -> list[str]:
    """Send so many transfers of one file each, of the connection's user or another; return their ids."""
    with _somebody(sandbox, user) as http:
        ids = [_create(http, recipients, subject) for _ in range(count)]
        for one in ids:
            http.post(f"transfers/{one}/send").raise_for_status()
    return ids


def create(sandbox: Sandbox, count: int = 1, *recipients: str) -> list[str]:
    with _somebody(sandbox) as http:
        return [_create(http, recipients, "Report") for _ in range(count)]


def replace_file(sandbox: Sandbox, transfer_id: str, name: str, content: bytes) -> None:
    """Replace a file of a draft, as a person does in the web application."""
    ids = [file["id"] for file in sandbox.transfer(transfer_id)["files"] if file["name"] == name]
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": "application/octet-stream"}
    with _somebody(sandbox) as http:
        for file_id in ids:
            http.delete(f"transfers/{transfer_id}/files/{file_id}").raise_for_status()
        http.post(f"transfers/{transfer_id}/files", content=content, headers=headers).raise_for_status()


def send_draft(sandbox: Sandbox, transfer_id: str) -> None:
    with _somebody(sandbox) as http:
        http.post(f"transfers/{transfer_id}/send").raise_for_status()


@contextmanager
def _somebody(sandbox: Sandbox, user: str = "") -> Iterator[httpx.Client]:
    state = sandbox.state()
    limits = {"requests_per_window": 10**9, "outstanding_transfer_limit": 10**6}
    sandbox.patch_account(**limits)
    headers = {"Authorization": f"Bearer {sandbox.new_key(user or state['user'])}"}
    with httpx.Client(base_url=f"{sandbox.base_url}/v1/", headers=headers, trust_env=False, timeout=60) as http:
        yield http
    sandbox.patch_account(**{name: state["account"][name] for name in limits})


def _create(http: httpx.Client, recipients: tuple[str, ...], subject: str) -> str:
    new = {"subject": subject, "recipients": [{"email": email} for email in recipients or (ANN,)]}
    draft = str(http.post("transfers", json=new).raise_for_status().json()["id"])
    name = {"Content-Disposition": 'attachment; filename="report.csv"'}
    http.post(f"transfers/{draft}/files", content=b"a,b\n", headers=name).raise_for_status()
    return draft


def pick_up(sandbox: Sandbox, transfer_id: str, *recipients: str) -> None:
    for recipient in recipients or (ANN,):
        sandbox.pickup(transfer_id, recipient)
