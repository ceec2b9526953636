"""Calls of the hook whose answer is lost; those of a task, two at once too, has :mod:`resilience.fault_matrix`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outbound_transfer.exceptions import CallError, InvalidState
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer_sandbox.testing import Sandbox
from support.provider import Upload, build_new_transfer

#: What can become of a call: it never arrives, or it is applied and its answer is lost.
FAULTS: dict[str, dict[str, Any]] = {
    "reset before": {"kind": "reset"},
    "reset after": {"kind": "reset", "effect": "after"},
    "cut off": {"kind": "reset_in_response", "after_bytes": 10},
    "503 before": {"kind": "error", "status": 503},
    "500 after": {"kind": "error", "status": 500, "effect": "after"},
    "429": {"kind": "error", "status": 429, "retry_after": "0"},
    "a page of a proxy after": {"kind": "error", "status": 404, "code": "", "effect": "after"},
}

NEW = build_new_transfer(subject="Report", recipients="ann@example.com")
UPLOAD = Upload("a.txt", 3, lambda: iter([b"abc"]))


@pytest.fixture
def patient(connection: str, sandbox: Sandbox) -> Iterator[OutboundTransferHook]:
    """A hook that does not sleep, with a key that is not limited."""
    sandbox.patch_account(requests_per_window=1_000_000)
    with OutboundTransferHook(connection, sleep=lambda _: None) as hook:
        yield hook


@pytest.fixture
def failing(sandbox: Sandbox) -> Callable[..., None]:
    """Plan faults for a method and a path."""

    def fail(method: str, path: str, *faults: str) -> None:
        sandbox.clear_faults()
        sandbox.plan_faults(*({**FAULTS[fault], "method": method, "path": path} for fault in faults))

    return fail


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_a_call_has_its_effect_once(patient, sandbox, failing, fault) -> None:
    draft = patient.create_transfer(NEW)
    failing("POST", "*/files", fault)
    file = patient.attach_file(draft.id, UPLOAD)
    sandbox.assert_all_faults_triggered()
    assert patient.list_files(draft.id) == (file,)
    assert sandbox.stored_content(draft.id, file.id) == b"abc"

    failing("DELETE", "*", fault)
    patient.remove_file(draft.id, file.id)
    sandbox.assert_all_faults_triggered()
    assert patient.list_files(draft.id) == ()

    patient.attach_file(draft.id, UPLOAD)
    for _ in range(2):  # a transfer that was sent before is returned
        failing("*", f"*{draft.id}*", fault)
        sent = patient.send_transfer(draft.id)
        assert (sent.id, sent.status) == (draft.id, "pending")
        sandbox.assert_all_faults_triggered()
    sandbox.assert_billed_once(draft.id)
    sandbox.pickup(draft.id, "ann@example.com")
    assert patient.send_transfer(draft.id).status == "complete"

    other = patient.create_transfer(NEW)
    failing("DELETE", "*", fault)
    patient.discard_transfer(other.id)
    sandbox.assert_all_faults_triggered()
    with pytest.raises(CallError, match="not_found"):
        patient.get_transfer(other.id)


def test_a_draft_without_files_is_not_said_to_be_sent(patient, sandbox, failing) -> None:
    for fault in ("429", "reset before"):
        draft = patient.create_transfer(NEW)
        failing("POST", "*/send", fault)
        with pytest.raises(InvalidState):
            patient.send_transfer(draft.id)
    sandbox.assert_nothing_sent()


def test_a_create_whose_answers_are_lost_leaves_two_drafts_at_most(patient, sandbox, failing) -> None:
    failing("POST", "/v1/transfers", *["reset after", "500 after"] * 5)
    with pytest.raises(CallError):
        patient.create_transfer(NEW)
    assert sum((call["method"], call["path"]) == ("POST", "/v1/transfers") for call in sandbox.requests()) <= 2
