"""Run the sandbox inside a test process. `running_sandbox` starts one on a free port and returns a client for it.

    with running_sandbox() as sandbox:
        headers = {"Authorization": f"Bearer {sandbox.transfer_api_key}"}
        httpx.get(f"{sandbox.base_url}/v1/transfers", headers=headers)
        sandbox.advance_clock(3600)

The pytest fixture `transfer_sandbox` does the same (see `pytest_plugin`).
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from .server.app import create_app
from .server.uvicorn import Server, base_url, listen
from .service.sandbox import SandboxService


class Sandbox:
    """A running sandbox: its address, its keys and its control API. A rejected call raises httpx.HTTPStatusError."""

    def __init__(self, base_url: str, transfer_api_key: str, event_api_key: str) -> None:
        self.base_url = base_url
        self.transfer_api_key = transfer_api_key
        self.event_api_key = event_api_key
        # An empty TLS context saves the 15 ms of loading certificates, which plain HTTP does not need.
        no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.Client(base_url=f"{base_url}/_sandbox/", timeout=60, trust_env=False, verify=no_tls)

    def close(self) -> None:
        """Close the client. The sandbox itself keeps running."""
        self._http.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the control API at `path`, below `/_sandbox/`. Returns the JSON response, or None if it has no body."""
        response = self._http.request(method, path, json=body)
        if response.is_error:
            said = f"{method} {response.url}: {response.status_code} {response.text}"
            raise httpx.HTTPStatusError(said, request=response.request, response=response)
        return response.json() if response.content else None

    def airflow_connection(self, **extra: object) -> str:
        """Return the value of an `AIRFLOW_CONN_…` variable with both keys. `extra` adds to the connection's extra."""
        connection = {"conn_type": "outbound_transfer", "host": self.base_url, "password": self.transfer_api_key}
        return json.dumps({**connection, "extra": {"event_api_key": self.event_api_key, **extra}})

    def reset(self) -> None:
        """Remove everything except the initial keys, and set the clock back to real time."""
        keys = self.call("POST", "reset")
        self.transfer_api_key, self.event_api_key = keys["transfer_api_key"], keys["event_api_key"]

    def state(self) -> dict[str, Any]:
        """Return the clock, the first user, the account's settings and the number of outstanding transfers."""
        state: dict[str, Any] = self.call("GET", "state")
        return state

    def patch_account(self, **settings: Any) -> dict[str, Any]:
        """Change the account's settings, and return all of them."""
        account: dict[str, Any] = self.call("PATCH", "account", settings)
        return account

    def advance_clock(self, seconds: float) -> str:
        """Move the service's clock forward, and return its new time in ISO 8601."""
        return str(self.call("POST", "clock", {"advance_seconds": seconds})["clock"])

    def new_key(self, user: str, *, api_permitted: bool = True, sending_permitted: bool = True) -> str:
        """Generate a transfer key of `user`, who is created if needed."""
        body = {"user": user, "api_permitted": api_permitted, "sending_permitted": sending_permitted}
        return str(self.call("POST", "keys", body)["key"])

    def revoke_key(self, key: str) -> None:
        """Revoke a transfer key."""
        self.call("POST", "keys/revoke", {"key": key})

    def patch_user(self, user: str, **grants: bool) -> None:
        """Change a user's `active`, `api_permitted` or `sending_permitted`."""
        self.call("PATCH", f"users/{user}", grants)

    def new_event_key(self) -> str:
        """Generate a new event key, store it as `event_api_key` of this object, and return it."""
        self.event_api_key = str(self.call("POST", "event-key")["key"])
        return self.event_api_key

    def transfer(self, transfer_id: str) -> dict[str, Any]:
        """Return any user's transfer, draft or sent, as the API does, without counting as a request."""
        transfer: dict[str, Any] = self.call("GET", f"transfers/{transfer_id}")
        return transfer

    def pickup(self, transfer_id: str, email: str) -> dict[str, Any]:
        """Let a recipient download every file, and return the transfer."""
        transfer: dict[str, Any] = self.call("POST", f"transfers/{transfer_id}/pickup", {"email": email})
        return transfer

    def cancel(self, transfer_id: str) -> dict[str, Any]:
        """Cancel a transfer, as in the web application, and return it."""
        transfer: dict[str, Any] = self.call("POST", f"transfers/{transfer_id}/cancel")
        return transfer

    def set_stored_status(self, transfer_id: str, stored_status: str) -> dict[str, Any]:
        """Turn a sent transfer into an old record. A status that the service does not list reads as `unknown`."""
        transfer: dict[str, Any] = self.call("PATCH", f"transfers/{transfer_id}", {"stored_status": stored_status})
        return transfer

    def set_expiry(self, transfer_id: str, seconds: float) -> dict[str, Any]:
        """Let one transfer expire in `seconds`."""
        transfer: dict[str, Any] = self.call("PATCH", f"transfers/{transfer_id}", {"expires_in_seconds": seconds})
        return transfer

    def add_events(self, count: int = 1, type: str = "transfer_sent", data: dict[str, Any] | None = None) -> int:  # noqa: A002
        """Append equal events to the feed, and return the id of the last one."""
        body = {"count": count, "type": type} | ({} if data is None else {"data": data})
        return int(self.call("POST", "events", body)["last_event_id"])

    def ledger(self) -> list[dict[str, Any]]:
        """Return what was billed and emailed, oldest first: kind, transfer_id, recipient, timestamp."""
        rows: list[dict[str, Any]] = self.call("GET", "ledger")
        return rows

    def requests(self) -> list[dict[str, Any]]:
        """Return the calls under /v1, oldest first: method, path, query, status, timestamp."""
        rows: list[dict[str, Any]] = self.call("GET", "requests")
        return rows

    def feed_calls(self) -> list[dict[str, Any]]:
        """Return the feed usage log, oldest first: timestamp, status, events."""
        rows: list[dict[str, Any]] = self.call("GET", "feed-calls")
        return rows

    def plan_faults(self, *faults: dict[str, Any]) -> None:
        """Append faults to the queue, for example `{"kind": "reset", "path": "*/send", "effect": "after"}`."""
        self.call("POST", "faults", list(faults))

    def faults(self) -> list[dict[str, Any]]:
        """Return every planned fault in order, with `state` (planned, held, triggered), `passed` and `call`."""
        rows: list[dict[str, Any]] = self.call("GET", "faults")
        return rows

    def clear_faults(self) -> None:
        """Remove all planned faults, and release the calls that they hold."""
        self.call("DELETE", "faults")

    def release_held_calls(self) -> int:
        """Release every call that a fault holds, and return how many."""
        return int(self.call("POST", "faults/release")["released"])

    def stored_file(self, transfer_id: str, file_id: str) -> dict[str, Any]:
        """Return what is stored of a file: id, name, size, content_type, stored_size, sha256."""
        record: dict[str, Any] = self.call("GET", f"transfers/{transfer_id}/files/{file_id}")
        return record

    def stored_content(self, transfer_id: str, file_id: str) -> bytes:
        """Return the stored bytes of a file."""
        response = self._http.get(f"transfers/{transfer_id}/files/{file_id}/content")
        return response.raise_for_status().content

    def sent(self) -> list[str]:
        """Return the id of the transfer of each bill, in the order of sending."""
        return [row["transfer_id"] for row in self.ledger() if row["kind"] == "billed"]

    def assert_nothing_sent(self) -> None:
        """Check that no transfer was sent."""
        assert self.sent() == [], f"nothing should have been sent; sent: {self._describe(self.sent())}"

    def assert_sent_once(self) -> str:
        """Return the id of the only transfer that was sent. Fails if none or several were sent."""
        sent = self.sent()
        assert len(sent) == 1, f"one transfer should have been sent; sent: {self._describe(sent)}"
        return sent[0]

    def assert_billed_once(self, transfer_id: str) -> None:
        """Check that the transfer was billed exactly once."""
        sent = self.sent()
        message = f"{transfer_id} was billed {sent.count(transfer_id)} times instead of once"
        assert sent.count(transfer_id) == 1, f"{message}; sent: {self._describe(sent)}"

    def assert_emailed(self, transfer_id: str, *emails: str) -> None:
        """Check that each of `emails`, and nobody else, received one pickup message of this transfer."""
        rows = [row for row in self.ledger() if row["kind"] == "emailed" and row["transfer_id"] == transfer_id]
        emailed = sorted(row["recipient"] for row in rows)
        assert emailed == sorted(emails), f"{transfer_id} was emailed to {emailed}, expected {sorted(emails)}"

    def assert_delivered(self, transfer_id: str, files: Mapping[str, bytes | Path], *emails: str) -> None:
        """Check that the transfer was billed once, emailed to exactly `emails`, and has exactly `files`.

        `files` maps names to bytes, or to the path of the source.
        """
        self.assert_billed_once(transfer_id)
        self.assert_emailed(transfer_id, *emails)
        stored = {file["name"]: file for file in self.transfer(transfer_id)["files"]}
        assert sorted(stored) == sorted(files), f"{transfer_id} holds {sorted(stored)}, expected {sorted(files)}"
        for name, source in files.items():
            expected = source.read_bytes() if isinstance(source, Path) else source
            self._assert_bytes(transfer_id, stored[name], expected)

    def _assert_bytes(self, transfer_id: str, file: dict[str, Any], expected: bytes) -> None:
        found = self.stored_file(transfer_id, file["id"])
        difference = f"{found['stored_size']} bytes are stored, {len(expected)} were expected"
        same = found["sha256"] == hashlib.sha256(expected).hexdigest()
        assert same, f"{file['name']!r} of {transfer_id} has different bytes: {difference}"

    def assert_all_faults_triggered(self) -> None:
        """Check that every planned fault has hit a call. Otherwise the test did not test the failure."""
        untriggered = [fault for fault in self.faults() if fault["state"] != "triggered"]
        assert untriggered == [], f"these planned faults hit no call: {untriggered}"

    def _describe(self, transfer_ids: list[str]) -> str:
        subjects = {transfer_id: self.transfer(transfer_id)["subject"] for transfer_id in transfer_ids}
        return ", ".join(f"{transfer_id} ({subjects[transfer_id]!r})" for transfer_id in transfer_ids) or "nothing"


@contextmanager
def running_sandbox(
    data_dir: Path | None = None,
    *,
    port: int = 0,
    transfer_key: str | None = None,
    event_key: str | None = None,
) -> Iterator[Sandbox]:
    """Run a sandbox on loopback in a thread of this process, with real sockets.

    Its state is in `data_dir`, or in a temporary directory that is removed with it.
    """
    with (
        TemporaryDirectory(prefix="outbound-transfer-sandbox-") as temporary,
        closing(SandboxService(data_dir or Path(temporary), durable=False)) as service,
        _serving(service, port) as url,
        closing(Sandbox(url, *service.ensure_keys(transfer_key, event_key))) as sandbox,
    ):
        yield sandbox


@contextmanager
def _serving(service: SandboxService, port: int) -> Iterator[str]:
    ready = threading.Event()
    server = Server(create_app(service), on_ready=ready.set)
    with listen("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        if not ready.wait(30):
            raise RuntimeError("the sandbox did not start within 30 s")
        try:
            yield base_url(listener)
        finally:
            server.stop()
            thread.join()
