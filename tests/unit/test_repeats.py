"""The one table of retry decisions, read row by row (design: promise 5.1; service.md, Client retry guidance)."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.protocol import calls, errors
from outbound_transfer.protocol.exchange import Call, Operation, Upload
from outbound_transfer.protocol.models import new_transfer
from outbound_transfer.protocol.repeats import EFFECTS, Decision, Effect, decide

FAIL, BACK_OFF, AS_TOLD = Decision.FAIL, Decision.BACK_OFF, Decision.WAIT_AS_TOLD

CALLS: dict[Operation, Call[Any]] = {
    call.operation: call
    for call in (
        calls.create_transfer(new_transfer(subject="S", recipients="a@example.com")),
        calls.list_transfers(),
        calls.get_transfer("t"),
        calls.attach_file("t", Upload("a", 1, lambda: iter([b"a"]))),
        calls.list_files("t"),
        calls.get_file("t", "f"),
        calls.remove_file("t", "f"),
        calls.discard_transfer("t"),
        calls.send_transfer("t"),
        calls.read_events(),
    )
}

#: The same for every operation; the one exception has a test of its own.
TABLE: dict[Exception, Decision] = {
    errors.NotConnected(): BACK_OFF,
    errors.ConnectionLost(): BACK_OFF,
    errors.TimedOut(): BACK_OFF,
    errors.MalformedAnswer(): BACK_OFF,
    errors.ServerFault(500): BACK_OFF,
    errors.ServerFault(502): BACK_OFF,
    errors.ServerFault(503, retry_after=0): BACK_OFF,
    errors.ServerFault(504): BACK_OFF,
    errors.RateLimited(429): AS_TOLD,
    errors.RateLimited(429, retry_after=60): AS_TOLD,
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
    assert decide(CALLS[operation], error) is TABLE[error]


def test_a_try_that_is_to_be_the_last_is() -> None:
    error = errors.TimedOut()
    error.is_last = True
    assert decide(CALLS[Operation.CREATE], error) is FAIL


@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.value)
def test_only_a_send_waits_for_a_slot(operation: Operation) -> None:
    expected = Decision.WAIT_FOR_SLOT if operation is Operation.SEND else BACK_OFF
    assert decide(CALLS[operation], errors.TransferLimitReached(409)) is expected


def test_the_table_has_every_error_of_a_call() -> None:
    def below(kind: type) -> set[type]:
        return {kind, *(each for sub in kind.__subclasses__() for each in below(sub))}

    mine = {kind for kind in below(errors.CallError) if kind.__module__ == errors.__name__}
    assert mine - set(map(type, TABLE)) == {errors.CallError, errors.TransferLimitReached}


def test_whatever_is_repeated_may_be_repeated() -> None:
    """A repeat is harmless by itself, or something is asked first."""
    for operation, effect in EFFECTS.items():
        is_asked_first = CALLS[operation].settle is not None
        assert is_asked_first == (effect in (Effect.REFUSED, Effect.SECOND_DRAFT))
        assert (CALLS[operation].unclear_tries is not None) == (effect is Effect.SECOND_DRAFT)
