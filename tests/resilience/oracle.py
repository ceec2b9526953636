"""The judge of a delivery: what the sandbox has billed, sent and stored, never what the client believes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from outbound_transfer_sandbox.testing import Sandbox
from resilience.inputs import stored_digests


class DeliveryOracle:
    """Judges what happens in ``sandbox`` from now on: one delivery of ``files`` to ``recipients``."""

    def __init__(self, sandbox: Sandbox, files: Sequence[Path], recipients: Sequence[str]) -> None:
        self.sandbox, self.files, self.recipients = sandbox, files, recipients
        self._ledger_before, self._log_before = len(sandbox.ledger()), len(sandbox.requests())

    def ledger(self) -> list[dict[str, Any]]:
        return self.sandbox.ledger()[self._ledger_before :]

    def calls(self) -> list[dict[str, Any]]:
        return self.sandbox.requests()[self._log_before :]

    def billed(self) -> list[str]:
        return [row["transfer_id"] for row in self.ledger() if row["kind"] == "billed"]

    def violations(self) -> Iterator[str]:
        """What breaks a promise, whether or not the delivery is over."""
        billed = self.billed()
        if len(billed) > 1:
            yield f"billed {len(billed)} times: {billed}"
        emailed = sorted(row["recipient"] for row in self.ledger() if row["kind"] == "emailed")
        if emailed != sorted(self.recipients) * len(billed):
            yield f"emailed {emailed} with {len(billed)} transfers billed"
        for transfer_id in billed:
            if (stored := self.stored(transfer_id)) != (meant := self.meant()):
                yield f"sent {stored} and not {meant}"

    def stored(self, transfer_id: str) -> dict[str, str]:
        """SHA-256 by name of what a transfer holds, perhaps in an archive."""
        url = f"{self.sandbox.base_url}/v1/transfers/{transfer_id}/files"
        key = {"Authorization": f"Bearer {self.sandbox.transfer_api_key}"}
        files = httpx.get(url, headers=key, trust_env=False, verify=False).raise_for_status().json()["data"]
        return stored_digests(self.sandbox, transfer_id, files)

    def meant(self) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.files}

    def leaked(self) -> int:
        """The drafts that were made but for the one that was sent, or that a clear of the task would go on with."""
        calls = [(call["method"], call["path"], call["status"]) for call in self.calls()]
        made = calls.count(("POST", "/v1/transfers", 201))
        discarded = sum(method == "DELETE" and status == 204 and _is_transfer(path) for method, path, status in calls)
        return max(made - discarded - 1, 0)


def _is_transfer(path: str) -> bool:
    return path.count("/") == 3
