"""Checks before a request that are made again after a wait among them."""

from __future__ import annotations

import pytest

from outbound_transfer.client.checks import MAX_AGE, MAX_REPEATS, Checks
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import ChecksOutdated
from support.scripted_client import PENDING, ScriptedAllowance, ScriptedClient

GET, SEND = endpoints.get_transfer("t"), endpoints.send_transfer("t")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.checks = Checks(lambda: self.now)

    def call(self, seconds: float, *, before: float = 0.0) -> None:
        """Make a call that waits, and then takes some seconds."""
        self.now += before
        self.checks.record_request()
        self.now += seconds
        self.checks.record_response()


@pytest.mark.parametrize(
    ("calls", "then", "is_fresh"),
    [
        ([], MAX_AGE, True),
        ([], MAX_AGE + 1, False),
        ([(1.0, 1_000.0)], 0.0, True),
        ([(1_000.0, 0.0)], 0.0, True),
        ([(1.0, 0.0)] * 50, 0.0, True),
        ([(1.0, 0.0), (1.0, MAX_AGE + 1)], 0.0, False),
        ([(1.0, 0.0), (MAX_AGE * 2 + 1, 0.0)], 0.0, False),
        ([(1.0, 0.0)], MAX_AGE + 1, False),
        ([(1.0, 0.0), *[(1.0, 3.0)] * 4], 0.0, False),
    ],
    ids=[
        "no call",
        "a wait, and no call",
        "a wait before the first response",
        "one slow response",
        "many responses",
        "a wait in between",
        "a silence in between",
        "a wait at the end",
        "many small waits",
    ],
)
def test_what_is_fresh(calls: list[tuple[float, float]], then: float, is_fresh: bool) -> None:
    clock, made, reserved = Clock(), [], []

    def check() -> None:
        made.append(None)
        if len(made) > 1:
            return
        for seconds, before in calls:
            clock.call(seconds, before=before)
        clock.now += then

    clock.checks.run(check, reserved.append)
    assert (len(made), reserved) == ((1, []) if is_fresh else (2, [len(calls)]))


def test_checks_that_are_never_fresh() -> None:
    clock, made = Clock(), []

    def check() -> None:
        made.append(None)
        clock.call(1.0)
        clock.now += MAX_AGE + 1

    with pytest.raises(ChecksOutdated, match="Nothing is sent"):
        clock.checks.run(check, lambda calls: None)
    assert len(made) == MAX_REPEATS


def test_a_client_makes_them_again_with_its_calls_reserved_at_once() -> None:
    allowance = ScriptedAllowance(20)
    with ScriptedClient(*[PENDING] * 5, allowance=allowance) as client:
        client.perform(SEND, before_attempt=lambda: (client.perform(GET), client.perform(GET)))
        assert " ".join(client.log) == "sleep sleep get sleep get sleep get get send"
    assert allowance.reserved == 5
