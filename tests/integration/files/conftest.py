"""Deliveries of files, as names and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox

DELIVERY = {"subject": "Report", "recipients": ["ann@example.com"]}


@pytest.fixture
def deliver(task: Callable[..., Any], sandbox: Sandbox) -> Callable[..., dict[str, bytes]]:
    """Deliver ``files``; what the recipient gets, by name."""
    sandbox.patch_account(requests_per_window=1_000_000)

    def deliver(files: Any, **arguments: Any) -> dict[str, bytes]:
        sent = task(DeliverFilesOperator, files=files, **{**DELIVERY, **arguments}).run()
        return {file["name"]: sandbox.stored_content(sent["id"], file["id"]) for file in sent["files"]}

    return deliver


@pytest.fixture
def refused(deliver: Callable[..., dict[str, bytes]], sandbox: Sandbox) -> Callable[..., str]:
    """Deliver in vain; what the error says. Nothing has been created."""

    def refused(files: Any, **arguments: Any) -> str:
        before = len(sandbox.requests())
        with pytest.raises(Exception) as error:  # noqa: PT011  # its class is the test's to look at
            deliver(files, **arguments)
        assert len(sandbox.requests()) == before
        refused.error = error.value  # type: ignore[attr-defined]
        return str(error.value)

    return refused
