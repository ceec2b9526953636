"""Never two sends, whatever fails in between: every sequence of failures against a tiny model of the service.

The model knows service.md's states and nothing of this package. In ``hostile`` mode it lets a second send through and
counts it, so that what is tested is the client's care and not the service's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from outbound_transfer.client.drive import drive
from outbound_transfer.protocol import calls, errors
from outbound_transfer.protocol.exchange import Answer, Call, Operation
from outbound_transfer.protocol.flows import Tries
from outbound_transfer.protocol.models import new_transfer
from outbound_transfer.protocol.repeats import Decision, decide

Fault = Callable[[Callable[[], Answer]], Answer]


@dataclass
class Service:
    """One transfer."""

    files: int = 1
    status: str = "draft"
    hostile: bool = False
    sends: int = 0

    def __call__(self, call: Call[Any]) -> Answer:
        if call.operation is Operation.GET:
            return self._transfer() if self.status else _error(404, "not_found")
        if call.operation is Operation.SEND:
            return self._send()
        existed, self.status = bool(self.status), ""
        return Answer(204, {}, b"") if existed else _error(404, "not_found")

    def _send(self) -> Answer:
        if not self.files or (self.status != "draft" and not self.hostile):
            return _error(409, "invalid_state")
        self.status, self.sends = "pending", self.sends + 1
        return self._transfer()

    def _transfer(self) -> Answer:
        return Answer(200, {}, json.dumps({"id": "t", "status": self.status, "subject": "S"}).encode())


def _error(status: int, code: str) -> Answer:
    return Answer(status, {}, json.dumps({"error": code, "message": ""}).encode())


def before(failure: type[Exception] | Answer) -> Fault:
    def fault(effect: Callable[[], Answer]) -> Answer:
        if isinstance(failure, Answer):
            return failure
        raise failure()

    return fault


def after(failure: type[Exception] | Answer) -> Fault:
    def fault(effect: Callable[[], Answer]) -> Answer:
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
    "garbage after": after(Answer(200, {}, b"<html>")),
}
SEQUENCES = [sequence for length in range(5) for sequence in product(FAULTS, repeat=length)]


@dataclass
class Played:
    """One call through all its tries."""

    service: Service
    result: Any = None
    error: errors.CallError | None = None
    asked: list[tuple[Operation, bool]] = field(default_factory=list)  # and whether it failed unclearly


def play(call: Call[Any], service: Service, faults: tuple[str, ...]) -> Played:
    """Try ``call`` as the table of decisions says; each fault meets one request, then all goes well."""
    played, left, tries = Played(service), iter(faults), Tries(call)

    def exchange(asked: Call[Any]) -> Answer:
        fault = next(left, None)
        played.asked.append((asked.operation, fault is not None and fault not in ("not connected", "429")))
        effect = lambda: service(asked)  # noqa: E731
        return FAULTS[fault](effect) if fault else effect()

    for _ in range(len(faults) + 1):
        try:
            played.result, played.error = drive(tries(), exchange), None
            return played
        except errors.CallError as error:
            played.error = error
            if decide(call, error) is Decision.FAIL:
                return played
    return played


def test_the_faults_cover_what_can_go_wrong() -> None:
    assert len(SEQUENCES) == 1 + 7 + 7**2 + 7**3 + 7**4


@pytest.mark.parametrize("hostile", [False, True])
def test_a_draft_is_sent_exactly_once_whatever_fails(hostile: bool) -> None:
    for faults in SEQUENCES:
        played = play(calls.send_transfer("t"), Service(hostile=hostile), faults)
        assert played.error is None, faults
        assert (played.service.sends, played.result.status) == (1, "pending"), faults


def test_no_send_follows_an_unclear_one_without_a_read_between() -> None:
    for faults in SEQUENCES:
        asked = play(calls.send_transfer("t"), Service(), faults).asked
        open_send = False
        for operation, unclear in asked:
            assert not (operation is Operation.SEND and open_send), faults
            open_send = unclear if operation is Operation.SEND else open_send and unclear_read(operation, unclear)


def unclear_read(operation: Operation, unclear: bool) -> bool:
    assert operation is Operation.GET
    return unclear


@pytest.mark.parametrize("status", ["pending", "partial", "complete", "expired", "canceled", "unknown"])
def test_a_transfer_that_was_sent_before_is_returned_and_not_sent(status: str) -> None:
    for faults in SEQUENCES if status == "pending" else SEQUENCES[:100]:
        played = play(calls.send_transfer("t"), Service(status=status), faults)
        assert (played.error, played.service.sends, played.result.status) == (None, 0, status), faults


def test_a_draft_without_files_is_refused_and_stays_a_draft() -> None:
    for faults in SEQUENCES:
        played = play(calls.send_transfer("t"), Service(files=0), faults)
        assert isinstance(played.error, errors.InvalidState), faults
        assert not played.error.unclear, faults
        assert played.service.status == "draft"


def test_removing_what_an_unclear_try_has_removed_is_a_success() -> None:
    for call, faults in product([calls.discard_transfer("t"), calls.remove_file("t", "f")], SEQUENCES):
        played = play(call, Service(), faults)
        assert (played.error, played.result, played.service.status) == (None, None, ""), faults


def test_removing_what_was_never_there_is_an_error() -> None:
    assert isinstance(play(calls.discard_transfer("t"), Service(status=""), ()).error, errors.NotFound)
    assert isinstance(play(calls.remove_file("t", "f"), Service(status=""), ("429",)).error, errors.NotFound)


def test_only_what_may_have_taken_effect_is_followed_by_a_question() -> None:
    asked = {
        fault: [op.value for op, _ in play(calls.send_transfer("t"), Service(), (fault,)).asked] for fault in FAULTS
    }
    assert asked == {
        "not connected": ["send", "send"],
        "429": ["send", "send"],
        "lost before": ["send", "get", "send"],
        "503 before": ["send", "get", "send"],
        "lost after": ["send", "get"],
        "500 after": ["send", "get"],
        "garbage after": ["send", "get"],
    }


# ----------------------------------------------------------------------------------- what is known when it is given up


def given_up(*script: Answer | type[Exception]) -> errors.CallError:
    """The error of the last try, where the tries of a send end with the script."""
    tries, left = Tries(calls.send_transfer("t")), list(script)
    error: errors.CallError | None = None
    while left:
        try:
            drive(tries(), lambda call: before(left.pop(0))(Service()._transfer))
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
    ("script", "unclear"),
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
def test_an_error_says_whether_any_try_may_have_taken_effect(script: tuple[Any, ...], unclear: bool) -> None:
    assert given_up(*script).unclear is unclear
    assert not errors.RateLimited.unclear, "an instance's mark is not its class'"


# Creates: nobody can tell whether one took effect, so each that is unclear may leave a draft.


def creates(script: list[str], *, drafts: int = 2) -> tuple[list[str], list[bool]]:
    """What is asked under the script's faults, try after try, and whether each error is the last."""
    asked, lasts = [], []
    new = new_transfer(subject="S", recipients=["a@example.com"])
    tries, left = Tries(calls.create_transfer(new, drafts=drafts)), list(script)
    faults: dict[str, Fault] = {**FAULTS, "none": lambda effect: effect()}

    def service(call: Call[Any]) -> Answer:
        asked.append(call.operation.value)
        if call.operation is Operation.LIST:
            return Answer(200, {}, b'{"data": []}')
        return Answer(201, {}, b'{"id": "t", "status": "draft", "subject": "S"}')

    while True:
        try:
            drive(tries(), lambda call: faults[left.pop(0) if left else "none"](lambda: service(call)))
        except errors.CallError as error:
            lasts.append(error.is_last)
            if error.is_last:
                return asked, lasts
        else:
            return asked, lasts


def test_another_draft_is_risked_only_once_the_service_answers() -> None:
    assert creates(["lost after"])[0] == ["create", "list", "create"]
    assert creates(["lost after", "503 before", "lost before"])[0] == ["create", "list", "create"]


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_creates_that_are_unclear_are_counted(drafts: int) -> None:
    asked, lasts = creates([each for _ in range(drafts) for each in ("500 after", "none")][:-1], drafts=drafts)
    assert asked.count("create") == drafts
    assert lasts == [False] * (drafts - 1) + [True]


def test_what_had_no_effect_is_not_counted() -> None:
    asked, lasts = creates(["not connected", "429"] * 5)
    assert asked == ["create"]
    assert not any(lasts)
