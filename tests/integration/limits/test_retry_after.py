"""A service that refuses or fails without end is given up in time, in the worker and over deferrals."""

from __future__ import annotations

import pytest

from outbound_transfer.exceptions import RateLimited, ServerFault
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries import BOTH_MODES, DELIVERY, small_files
from support.tasks import SimulatedClock, task_instance

#: The longest that a call is repeated.
MOST_SECONDS = 3_600

PATHS = {"create": "/v1/transfers", "attach": "*/files", "send": "*/send"}


def fail(sandbox: Sandbox, call: str, **response: object) -> None:
    sandbox.plan_faults(*[{"kind": "error", "method": "POST", "path": PATHS[call], **response}] * 1_000)


def tries(sandbox: Sandbox) -> int:
    return sum(fault["state"] == "triggered" for fault in sandbox.faults())


def bounded(time: SimulatedClock, most: float) -> None:
    """Fail the test at a wait that would end after ``most`` seconds in all, before it goes on for ever."""
    sleep = time.sleep

    def sleep_or_fail(seconds: float) -> None:
        assert time.now + seconds <= most, f"{time.now + seconds:.0f} s in waits, where {most:.0f} s are the most"
        sleep(seconds)

    time.sleep = sleep_or_fail  # type: ignore[method-assign]


@BOTH_MODES
@pytest.mark.parametrize("call", ["create", "attach"])
def test_a_429_without_end_is_given_up_in_time(connection, sandbox, time, tmp_path, call, deferrable) -> None:
    fail(sandbox, call, status=429, retry_after="120")
    bounded(time, MOST_SECONDS)
    files = small_files(tmp_path, 1)

    with pytest.raises(RateLimited):
        task_instance(DeliverFilesOperator, time, files=files, deferrable=deferrable, **DELIVERY).run()

    assert 3 <= tries(sandbox) <= MOST_SECONDS / 120 + 1


@BOTH_MODES
@pytest.mark.parametrize(("value", "least"), [("0", 0.5), ("7", 7), ("garbage", 0.5), (None, 0.5)])
def test_a_429_is_repeated_neither_early_nor_at_once(
    connection, sandbox, time, tmp_path, value, least, deferrable
) -> None:
    sandbox.plan_faults(*[{"kind": "error", "path": PATHS["create"], "status": 429, "retry_after": value}] * 5)
    files = small_files(tmp_path, 1)

    task_instance(DeliverFilesOperator, time, files=files, deferrable=deferrable, **DELIVERY).run()

    assert time.now >= 5 * least
    assert len(sandbox.sent()) == 1


@BOTH_MODES
@pytest.mark.parametrize("call", PATHS)
def test_a_service_that_fails_without_end_is_given_up(connection, sandbox, time, tmp_path, call, deferrable) -> None:
    fail(sandbox, call, status=500)
    bounded(time, MOST_SECONDS)
    files = small_files(tmp_path, 1)

    with pytest.raises(ServerFault):
        task_instance(DeliverFilesOperator, time, files=files, deferrable=deferrable, **DELIVERY).run()

    assert 2 <= tries(sandbox) <= 10
    if call == "create":
        assert tries(sandbox) == 2, "each may leave a draft that nothing leads to"
