"""The retry decisions, row by row (service-api.md, R50 and R51)."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.protocol import endpoints, errors
from outbound_transfer.protocol.messages import Call, Operation, Upload
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer.protocol.retry_rules import REPEAT_EFFECTS, RepeatEffect, RetryDecision, decide_retry

FAIL, BACK_OFF, RETRY_AFTER = RetryDecision.FAIL, RetryDecision.BACK_OFF, RetryDecision.WAIT_RETRY_AFTER

CALLS: dict[Operation, Call[Any]] = {
    call.operation: call
    for call in (
        endpoints.create_transfer(build_new_transfer(subject="S", recipients="a@example.com")),
        endpoints.list_transfers(),
        endpoints.get_transfer("t"),
        endpoints.attach_file("t", Upload("a", 1, lambda: iter([b"a"]))),
        endpoints.list_files("t"),
        endpoints.get_file("t", "f"),
        endpoints.remove_file("t", "f"),
        endpoints.discard_transfer("t"),
        endpoints.send_transfer("t"),
        endpoints.read_events(),
    )
}

#: The same for every operation; the one exception has a test of its own.
TABLE: dict[Exception, RetryDecision] = {
    errors.NotConnected(): BACK_OFF,
    errors.ConnectionLost(): BACK_OFF,
    errors.TimedOut(): BACK_OFF,
    errors.MalformedResponse(): BACK_OFF,
    errors.ServerFault(500): BACK_OFF,
    errors.ServerFault(502): BACK_OFF,
    errors.ServerFault(503, retry_after=0): BACK_OFF,
    errors.ServerFault(504): BACK_OFF,
    errors.RateLimited(429): RETRY_AFTER,
    errors.RateLimited(429, retry_after=60): RETRY_AFTER,
    errors.InvalidRequest(400): FAIL,
    errors.InvalidApiKey(401): FAIL,
    errors.Forbidden(403): FAIL,
    errors.ApiNotEnabled(403): FAIL,
    errors.ApiNotPermitted(403): FAIL,
    errors.SendingNotPermitted(403): FAIL,
    errors.AuthOptionNotEnabled(403): FAIL,
    errors.NoCredit(403): FAIL,
    errors.NotFound(404): FAIL,
    errors.Conflict(409): FAIL,
    errors.InvalidState(409): FAIL,
    errors.RecipientLimitExceeded(409): FAIL,
    errors.LengthRequired(411): FAIL,
    errors.FileTooLarge(413): FAIL,
    errors.ServiceError(600): FAIL,
    errors.SourceChanged(): FAIL,
    errors.SourceUnreadable(): FAIL,
    errors.FileConflict(): FAIL,
    errors.InvalidDelivery(): FAIL,
    ValueError(): FAIL,
    OSError(): FAIL,
}


def name_of(error: Exception) -> str:
    return f"{type(error).__name__}{getattr(error, 'status', '')}"


@pytest.mark.parametrize("error", TABLE, ids=name_of)
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.value)
def test_every_error_of_every_operation(operation: Operation, error: Exception) -> None:
    assert decide_retry(CALLS[operation], error) is TABLE[error]


def test_the_last_attempt_is_not_repeated() -> None:
    error = errors.TimedOut()
    error.is_last = True
    assert decide_retry(CALLS[Operation.CREATE], error) is FAIL


@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.value)
def test_only_a_send_waits_for_a_slot(operation: Operation) -> None:
    expected = RetryDecision.WAIT_FOR_SLOT if operation is Operation.SEND else BACK_OFF
    assert decide_retry(CALLS[operation], errors.TransferLimitReached(409)) is expected


def test_the_table_has_every_error_of_a_call() -> None:
    def below(kind: type) -> set[type]:
        return {kind, *(each for sub in kind.__subclasses__() for each in below(sub))}

    mine = {kind for kind in below(errors.CallError) if kind.__module__ == errors.__name__}
    assert mine - set(map(type, TABLE)) == {errors.CallError, errors.TransferLimitReached}


def test_whatever_is_repeated_may_be_repeated() -> None:
    """A repeat is harmless by itself, or the call is reconciled first."""
    for operation, effect in REPEAT_EFFECTS.items():
        is_reconciled = CALLS[operation].reconciliation is not None
        assert is_reconciled == (effect in (RepeatEffect.INVALID_STATE, RepeatEffect.DUPLICATE_DRAFT))
        assert (CALLS[operation].max_in_doubt_attempts is not None) == (effect is RepeatEffect.DUPLICATE_DRAFT)
