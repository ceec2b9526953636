"""The sandbox inside a test process: `running_sandbox` starts one on a free port and gives a client of its control API.

with running_sandbox() as sandbox:
    httpx.get(f"{sandbox.base_url}/v1/transfers", headers={"Authorization": f"Bearer {sandbox.transfer_api_key}"})
    sandbox.advance_clock(3600)

Under pytest the fixture `transfer_sandbox` does the same (see `pytest_plugin`).
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

from .app import create_app
from .server import Server, base_url, listen
from .service.sandbox import Sandbox as Service


class Sandbox:
    """A running sandbox: where it is, its keys, and its control API. Calls raise httpx.HTTPStatusError when refused."""

    def __init__(self, base_url: str, transfer_api_key: str, event_api_key: str) -> None:
        self.base_url = base_url
        self.transfer_api_key = transfer_api_key
        self.event_api_key = event_api_key
        # An empty TLS context spares 15 ms of loading certificates that plain HTTP has no use for.
        no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.Client(base_url=f"{base_url}/_sandbox/", timeout=60, trust_env=False, verify=no_tls)

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Any call of the control API, `path` below `/_sandbox/`; its JSON answer, None when it has no body."""
        response = self._http.request(method, path, json=body)
        response.raise_for_status()
        return response.json() if response.content else None

    def airflow_connection(self, **extra: object) -> str:
        """The value of an `AIRFLOW_CONN_…` variable, with both keys; `extra` adds fields of the connection."""
        connection = {"conn_type": "outbound_transfer", "host": self.base_url, "password": self.transfer_api_key}
        return json.dumps({**connection, "extra": {"event_api_key": self.event_api_key, **extra}})

    def reset(self) -> None:
        """Forgets everything but the keys that the sandbox was started with; the clock shows real time again."""
        keys = self.call("POST", "reset")
        self.transfer_api_key, self.event_api_key = keys["transfer_api_key"], keys["event_api_key"]

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.call("GET", "state")
        return state

    def patch_account(self, **settings: Any) -> dict[str, Any]:
        """The account's settings after the change."""
        account: dict[str, Any] = self.call("PATCH", "account", settings)
        return account

    def advance_clock(self, seconds: float) -> str:
        """The service's new time, ISO 8601."""
        return str(self.call("POST", "clock", {"advance_seconds": seconds})["clock"])

    def new_key(self, user: str, *, api_permitted: bool = True, sending_permitted: bool = True) -> str:
        body = {"user": user, "api_permitted": api_permitted, "sending_permitted": sending_permitted}
        return str(self.call("POST", "keys", body)["key"])

    def revoke_key(self, key: str) -> None:
        self.call("POST", "keys/revoke", {"key": key})

    def patch_user(self, user: str, **grants: bool) -> None:
        """Changes `active`, `api_permitted` or `sending_permitted`."""
        self.call("PATCH", f"users/{user}", grants)

    def new_event_key(self) -> str:
        """The new key, which is from now on this object's `event_api_key` too."""
        self.event_api_key = str(self.call("POST", "event-key")["key"])
        return self.event_api_key

    def transfer(self, transfer_id: str) -> dict[str, Any]:
        """Any user's transfer, draft or sent, as the API retrieves it. Counts for no rate."""
        transfer: dict[str, Any] = self.call("GET", f"transfers/{transfer_id}")
        return transfer

    def pickup(self, transfer_id: str, email: str) -> dict[str, Any]:
        """The transfer after that recipient's download."""
        transfer: dict[str, Any] = self.call("POST", f"transfers/{transfer_id}/pickup", {"email": email})
        return transfer

    def cancel(self, transfer_id: str) -> dict[str, Any]:
        transfer: dict[str, Any] = self.call("POST", f"transfers/{transfer_id}/cancel")
        return transfer

    def set_stored_status(self, transfer_id: str, stored_status: str) -> dict[str, Any]:
        """Makes a sent transfer an old record; any word outside the vocabulary reads as `unknown`."""
        transfer: dict[str, Any] = self.call("PATCH", f"transfers/{transfer_id}", {"stored_status": stored_status})
        return transfer

    def set_expiry(self, transfer_id: str, seconds: float) -> dict[str, Any]:
        """Lets one transfer expire in so many seconds."""
        transfer: dict[str, Any] = self.call("PATCH", f"transfers/{transfer_id}", {"expires_in_seconds": seconds})
        return transfer

    def add_events(self, count: int = 1, type: str = "transfer_sent", data: dict[str, Any] | None = None) -> int:  # noqa: A002
        """The id of the last event."""
        body = {"count": count, "type": type} | ({} if data is None else {"data": data})
        return int(self.call("POST", "events", body)["last_event_id"])

    def ledger(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.call("GET", "ledger")
        return rows

    def requests(self) -> list[dict[str, Any]]:
        """The calls received under /v1, oldest first: method, path, query, status, at."""
        rows: list[dict[str, Any]] = self.call("GET", "requests")
        return rows

    def feed_calls(self) -> list[dict[str, Any]]:
        """The feed usage log, oldest first: at, status, events."""
        rows: list[dict[str, Any]] = self.call("GET", "feed-calls")
        return rows

    def plan_faults(self, *faults: dict[str, Any]) -> None:
        """Appends to the queue of planned faults, e.g. `{"kind": "reset", "path": "*/send", "effect": "after"}`."""
        self.call("POST", "faults", list(faults))

    def faults(self) -> list[dict[str, Any]]:
        """Every planned fault in its order, with its `state` (planned, held or met), `passed` calls and `call`."""
        rows: list[dict[str, Any]] = self.call("GET", "faults")
        return rows

    def clear_faults(self) -> None:
        """Forgets all planned faults; calls that are held go on."""
        self.call("DELETE", "faults")

    def release(self) -> int:
        """Lets go of every call that is held; their number."""
        return int(self.call("POST", "faults/release")["released"])

    def stored_file(self, transfer_id: str, file_id: str) -> dict[str, Any]:
        """What is really stored: id, name, size, content_type, stored_size, sha256."""
        record: dict[str, Any] = self.call("GET", f"transfers/{transfer_id}/files/{file_id}")
        return record

    def stored_content(self, transfer_id: str, file_id: str) -> bytes:
        response = self._http.get(f"transfers/{transfer_id}/files/{file_id}/content")
        return response.raise_for_status().content

    def sent(self) -> list[str]:
        """The ids of the transfers that were billed, in the order of sending; one for each bill."""
        return [row["transfer_id"] for row in self.ledger() if row["kind"] == "billed"]

    def assert_nothing_sent(self) -> None:
        assert self.sent() == [], f"nothing should have been sent; sent: {self._told(self.sent())}"

    def assert_sent_once(self) -> str:
        """The id of the one transfer that was sent; fails when there was none, or more."""
        sent = self.sent()
        assert len(sent) == 1, f"one transfer should have been sent; sent: {self._told(sent)}"
        return sent[0]

    def assert_billed_once(self, transfer_id: str) -> None:
        sent = self.sent()
        message = f"{transfer_id} was billed {sent.count(transfer_id)} times instead of once"
        assert sent.count(transfer_id) == 1, f"{message}; sent: {self._told(sent)}"

    def assert_emailed(self, transfer_id: str, *emails: str) -> None:
        """Each of `emails` got one pickup message of this transfer, and nobody else got one."""
        rows = [row for row in self.ledger() if row["kind"] == "emailed" and row["transfer_id"] == transfer_id]
        emailed = sorted(row["recipient"] for row in rows)
        assert emailed == sorted(emails), f"{transfer_id} was emailed to {emailed}, expected {sorted(emails)}"

    def assert_delivered(self, transfer_id: str, files: Mapping[str, bytes | Path], *emails: str) -> None:
        """It was billed once, emailed to just `emails`, and holds just `files`: name to bytes, or to the source."""
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
        assert same, f"{file['name']!r} of {transfer_id} has other bytes: {difference}"

    def assert_faults_met(self) -> None:
        """Every planned fault has happened to a call: a test of a failure that never came proves nothing."""
        waiting = [fault for fault in self.faults() if fault["state"] != "met"]
        assert waiting == [], f"faults that no call has met: {waiting}"

    def _told(self, transfer_ids: list[str]) -> str:
        subjects = {transfer_id: self.transfer(transfer_id)["subject"] for transfer_id in transfer_ids}
        return ", ".join(f"{transfer_id} ({subjects[transfer_id]!r})" for transfer_id in transfer_ids) or "nothing"


@contextmanager
def running_sandbox(
    data_dir: Path | None = None,
    *,
    port: int = 0,
    transfer_key: str | None = None,
    event_key: str | None = None,
    quota: int | None = None,
) -> Iterator[Sandbox]:
    """A sandbox on loopback in a thread of this process, with real sockets.

    Its state is in `data_dir`, or in a temporary directory that goes with it; `quota` bounds its bytes.
    """
    with (
        TemporaryDirectory(prefix="outbound-transfer-sandbox-") as temporary,
        closing(Service(data_dir or Path(temporary), quota, durable=False)) as service,
        _serving(service, port) as url,
        closing(Sandbox(url, *service.open_keys(transfer_key, event_key))) as sandbox,
    ):
        yield sandbox


@contextmanager
def _serving(service: Service, port: int) -> Iterator[str]:
    ready = threading.Event()
    server = Server(create_app(service), on_ready=ready.set)
    with listen("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        if not ready.wait(30):
            raise RuntimeError("the sandbox did not start")
        try:
            yield base_url(listener)
        finally:
            server.stop()
            thread.join()
