"""The two drivers do the same for any flow, and leave no flow open."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.drivers import drive, drive_async
from outbound_transfer.protocol.endpoints import get_transfer
from outbound_transfer.protocol.errors import CallError, ConnectionLost, RateLimited

#: What the flow does at each step, and what is answered to it.
flows = st.lists(st.sampled_from(["ask", "ask and catch", "ask in a flow", "raise", "raise a call error", "return"]))
scripts = st.lists(st.integers() | st.sampled_from([ConnectionLost("lost"), RateLimited(429), KeyError("bug")]))


def flow_of(steps: list[str], seen: list[str]) -> Generator[Any, Any, Any]:
    """A flow that does ``steps`` and records what it receives."""
    try:
        for number, step in enumerate(steps):
            if step == "raise":
                raise ValueError(number)
            if step == "raise a call error":
                raise ConnectionLost(f"mine {number}")
            if step == "return":
                return number
            if step == "ask in a flow":
                seen.append(repr((yield from flow_of(["ask", "ask and catch"], seen))))
            try:
                seen.append(repr((yield get_transfer(str(number)))))
            except CallError as error:
                seen.append(repr(error))
                if step == "ask":
                    raise
    finally:
        seen.append("closed")
    return "end"


class Performer:
    """Answers from a script, then with None."""

    def __init__(self, script: list[Any], seen: list[str]) -> None:
        self.script, self.seen = iter(script), seen

    def __call__(self, call: Any) -> Any:
        self.seen.append(call.path)
        answer = next(self.script, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def later(self, call: Any) -> Any:
        await asyncio.sleep(0)
        return self(call)


def outcome_of(run: Any) -> str:
    try:
        return repr(run())
    except Exception as error:
        return f"raised {error!r}"


@given(flows, scripts)
def test_both_drivers_do_the_same(steps: list[str], script: list[Any]) -> None:
    seen: list[str] = []
    expected = outcome_of(lambda: drive(flow_of(steps, seen), Performer(script, seen)))
    seen_async: list[str] = []
    coroutine = drive_async(flow_of(steps, seen_async), Performer(script, seen_async).later)
    assert outcome_of(lambda: asyncio.run(coroutine)) == expected
    assert seen_async == seen
    assert seen[-1] == "closed"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()])
def test_a_stop_in_the_middle_closes_the_flow(stop: BaseException) -> None:
    seen: list[str] = []

    def perform(call: Any) -> Any:
        raise stop

    with pytest.raises(type(stop)):
        drive(flow_of(["ask and catch", "ask"], seen), perform)
    assert seen == ["closed"], "no error but a call's is thrown into a flow"


async def test_a_cancellation_closes_the_flow() -> None:
    seen: list[str] = []

    async def perform(call: Any) -> Any:
        await asyncio.sleep(60)

    task = asyncio.ensure_future(drive_async(flow_of(["ask and catch"], seen), perform))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["closed"]
