"""Never two sends, whatever fails in between: every sequence of failures against a tiny model of the service.

The model knows the service's statuses and nothing of this package. In ``hostile`` mode it lets a second send by and
counts it, so that what is tested is the client's care and not the service's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest

from outbound_transfer.client.drivers import drive
from outbound_transfer.protocol import endpoints, errors
from outbound_transfer.protocol.flows import SafeCall
from outbound_transfer.protocol.messages import Call, Operation, Response
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer.protocol.retry_rules import RetryDecision, decide_retry

Fault = Callable[[Callable[[], Response]], Response]


@dataclass
class Service:
    """One transfer."""

    files: int = 1
    status: str = "draft"
    hostile: bool = False
    sends: int = 0

    def __call__(self, call: Call[Any]) -> Response:
        if call.operation is Operation.GET:
            return self._transfer() if self.status else _error(404, "not_found")
        if call.operation is Operation.SEND:
            return self._send()
        existed, self.status = bool(self.status), ""
        return Response(204, {}, b"") if existed else _error(404, "not_found")

    def _send(self) -> Response:
        if not self.files or (self.status != "draft" and not self.hostile):
            return _error(409, "invalid_state")
        self.status, self.sends = "pending", self.sends + 1
        return self._transfer()

    def _transfer(self) -> Response:
        return Response(200, {}, json.dumps({"id": "t", "status": self.status, "subject": "S"}).encode())


def _error(status: int, code: str) -> Response:
    return Response(status, {}, json.dumps({"error": code, "message": ""}).encode())


def before(failure: type[Exception] | Response) -> Fault:
    def fault(effect: Callable[[], Response]) -> Response:
        if isinstance(failure, Response):
            return failure
        raise failure()

    return fault


def after(failure: type[Exception] | Response) -> Fault:
    def fault(effect: Callable[[], Response]) -> Response:
        effect()
        return before(failure)(effect)

    return fault


FAULTS: dict[str, Fault] = {
    "not connected": before(errors.NotConnected),
    "lost before": before(errors.ConnectionLost),
    "lost after": after(errors.ConnectionLost),
    "503 before": before(_error(503, "service_unavailable")),
    "500 after": after(_error(500, "internal_error")),
    "429": before(_error(429, "rate_limited")),
    "garbage after": after(Response(200, {}, b"<html>")),
}
SEQUENCES = [sequence for length in range(5) for sequence in product(FAULTS, repeat=length)]


@dataclass
class Played:
    """One call through all its attempts."""

    service: Service
    result: Any = None
    error: errors.CallError | None = None
    calls: list[tuple[Operation, bool]] = field(default_factory=list)  # and whether it was in doubt


def play(call: Call[Any], service: Service, faults: tuple[str, ...]) -> Played:
    """Repeat ``call`` as the retry rules decide; each fault affects one request, later ones succeed."""
    played, left, safe_call = Played(service), iter(faults), SafeCall(call)

    def send(request: Call[Any]) -> Response:
        fault = next(left, None)
        played.calls.append((request.operation, fault is not None and fault not in ("not connected", "429")))
        effect = lambda: service(request)  # noqa: E731
        return FAULTS[fault](effect) if fault else effect()

    for _ in range(len(faults) + 1):
        try:
            played.result, played.error = drive(safe_call(), send), None
            return played
        except errors.CallError as error:
            played.error = error
            if decide_retry(call, error) is RetryDecision.FAIL:
                return played
    return played


def test_the_faults_cover_what_can_go_wrong() -> None:
    assert len(SEQUENCES) == 1 + 7 + 7**2 + 7**3 + 7**4


@pytest.mark.parametrize("hostile", [False, True])
def test_a_draft_is_sent_exactly_once_whatever_fails(hostile: bool) -> None:
    for faults in SEQUENCES:
        played = play(endpoints.send_transfer("t"), Service(hostile=hostile), faults)
        assert played.error is None, faults
        assert (played.service.sends, played.result.status) == (1, "pending"), faults


def test_no_send_follows_one_in_doubt_without_a_read_between() -> None:
    for faults in SEQUENCES:
        calls = play(endpoints.send_transfer("t"), Service(), faults).calls
        open_send = False
        for operation, in_doubt in calls:
            assert not (operation is Operation.SEND and open_send), faults
            open_send = in_doubt if operation is Operation.SEND else open_send and is_read_in_doubt(operation, in_doubt)


def is_read_in_doubt(operation: Operation, in_doubt: bool) -> bool:
    assert operation is Operation.GET
    return in_doubt


@pytest.mark.parametrize("status", ["pending", "partial", "complete", "expired", "canceled", "unknown"])
def test_a_transfer_that_was_sent_before_is_returned_and_not_sent(status: str) -> None:
    for faults in SEQUENCES if status == "pending" else SEQUENCES[:100]:
        played = play(endpoints.send_transfer("t"), Service(status=status), faults)
        assert (played.error, played.service.sends, played.result.status) == (None, 0, status), faults


def test_a_draft_without_files_is_refused_and_stays_a_draft() -> None:
    for faults in SEQUENCES:
        played = play(endpoints.send_transfer("t"), Service(files=0), faults)
        assert isinstance(played.error, errors.InvalidState), faults
        assert not played.error.in_doubt, faults
        assert played.service.status == "draft"


def test_removing_again_after_an_attempt_in_doubt_succeeds() -> None:
    for call, faults in product([endpoints.discard_transfer("t"), endpoints.remove_file("t", "f")], SEQUENCES):
        played = play(call, Service(), faults)
        assert (played.error, played.result, played.service.status) == (None, None, ""), faults


def test_removing_what_was_never_there_is_an_error() -> None:
    assert isinstance(play(endpoints.discard_transfer("t"), Service(status=""), ()).error, errors.NotFound)
    assert isinstance(play(endpoints.remove_file("t", "f"), Service(status=""), ("429",)).error, errors.NotFound)


def test_only_attempts_in_doubt_are_reconciled() -> None:
    calls = {
        fault: [op.value for op, _ in play(endpoints.send_transfer("t"), Service(), (fault,)).calls] for fault in FAULTS
    }
    assert calls == {
        "not connected": ["send", "send"],
        "429": ["send", "send"],
        "lost before": ["send", "get", "send"],
        "503 before": ["send", "get", "send"],
        "lost after": ["send", "get"],
        "500 after": ["send", "get"],
        "garbage after": ["send", "get"],
    }


# ----------------------------------------------------------------------------------- the error after the last attempt


def given_up(*script: Response | type[Exception]) -> errors.CallError:
    """Return the error of the last attempt of a send whose attempts stop with the script."""
    safe_call, left = SafeCall(endpoints.send_transfer("t")), list(script)
    error: errors.CallError | None = None
    while left:
        try:
            drive(safe_call(), lambda call: before(left.pop(0))(Service()._transfer))
        except errors.CallError as raised:
            error = raised
    assert error is not None
    return error


DRAFT = Service()._transfer()
LIMITED = _error(429, "rate_limited")
BUSY = _error(503, "service_unavailable")
NO_CREDIT = _error(403, "no_credit")
SENT = _error(409, "invalid_state")


@pytest.mark.parametrize(
    ("script", "in_doubt"),
    [
        ((BUSY,), True),
        ((LIMITED,), False),
        ((NO_CREDIT,), False),
        ((BUSY, LIMITED), True),
        ((BUSY, errors.NotConnected), True),
        ((BUSY, DRAFT, LIMITED), False),
        ((BUSY, DRAFT, NO_CREDIT), False),
        ((BUSY, DRAFT, BUSY), True),
        ((SENT, LIMITED), True),
        ((SENT, errors.NotConnected), True),
        ((SENT, DRAFT), False),
    ],
)
def test_an_error_says_whether_any_attempt_may_have_been_applied(script: tuple[Any, ...], in_doubt: bool) -> None:
    assert given_up(*script).in_doubt is in_doubt
    assert not errors.RateLimited.in_doubt, "an instance's mark is not its class'"


# A create in doubt cannot be reconciled, so each may leave a draft.


def creates(script: list[str], *, drafts: int = 2) -> tuple[list[str], list[bool]]:
    """Return the calls under the script's faults, and for each error whether it is the last."""
    calls, are_last = [], []
    new = build_new_transfer(subject="S", recipients=["a@example.com"])
    safe_call, left = SafeCall(replace(endpoints.create_transfer(new), max_in_doubt_attempts=drafts)), list(script)
    faults: dict[str, Fault] = {**FAULTS, "none": lambda effect: effect()}

    def service(call: Call[Any]) -> Response:
        calls.append(call.operation.value)
        if call.operation is Operation.LIST:
            return Response(200, {}, b'{"data": [], "next_cursor": null}')
        return Response(201, {}, b'{"id": "t", "status": "draft", "subject": "S"}')

    while True:
        try:
            drive(safe_call(), lambda call: faults[left.pop(0) if left else "none"](lambda: service(call)))
        except errors.CallError as error:
            are_last.append(error.is_last)
            if error.is_last:
                return calls, are_last
        else:
            return calls, are_last


def test_a_create_is_repeated_only_once_the_service_responds() -> None:
    assert creates(["lost after"])[0] == ["create", "list", "create"]
    assert creates(["lost after", "503 before", "lost before"])[0] == ["create", "list", "create"]


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_creates_in_doubt_are_counted(drafts: int) -> None:
    calls, are_last = creates([each for _ in range(drafts) for each in ("500 after", "none")][:-1], drafts=drafts)
    assert calls.count("create") == drafts
    assert are_last == [False] * (drafts - 1) + [True]


def test_what_had_no_effect_is_not_counted() -> None:
    calls, are_last = creates(["not connected", "429"] * 5)
    assert calls == ["create"]
    assert not any(are_last)
