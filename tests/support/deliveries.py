"""Deliveries in tests, and what the sandbox says of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from outbound_transfer_sandbox.testing import Sandbox

DELIVERY = {"subject": "Report", "recipients": ["ann@example.com"]}

BOTH_MODES = pytest.mark.parametrize("deferrable", [False, True], ids=["held", "deferrable"])


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def billed(sandbox: Sandbox) -> Counter[str]:
    return Counter(row["transfer_id"] for row in sandbox.ledger() if row["kind"] == "billed")


def counts(sandbox: Sandbox) -> Counter[tuple[str, str, int]]:
    """How often each call was answered how: by method, last word of the path (``""`` for an id), and status."""
    kinds = ("transfers", "files", "send")
    last = ((call, call["path"].rpartition("/")[2]) for call in sandbox.requests())
    return Counter((call["method"], word if word in kinds else "", call["status"]) for call, word in last)


def small_files(folder: Path, count: int) -> str:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:04}.txt").write_text(f"{number:0100}")
    return str(folder / "*.txt")
