"""The queue of planned faults: which call each one hits, and a record of what happened to it.

The queue is in memory; a restart empties it. The first fault that is not triggered yet is active, and the others wait
for it. The request log records what reached the service: a call that a fault stops is recorded in the queue only.

A fault's `method` and `path` select calls. `*` stands for any method; in a path, a shell pattern, it stands for any
text, slashes included. The active fault lets `skip` of the selected calls pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from .interception import InterceptedCall
from .kinds import Fault, ResponseFault

MAX_PLANNED_FAULTS = 10_000  # triggered faults count until they are cleared
MAX_PLANNED_BYTES = 16_777_216  # all of them together, as JSON


class TooManyFaults(ValueError):
    """The queue is full."""


@dataclass
class PlannedFault:
    """A fault in the queue. It is `held` while it delays its call, then `triggered`; `call` is the call that it hit."""

    fault: Fault
    state: Literal["planned", "held", "triggered"] = "planned"
    passed: int = 0
    call: dict[str, str] | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    is_matching: bool = False

    def to_dict(self) -> dict[str, Any]:
        fault: dict[str, Any] = msgspec.to_builtins(self.fault)
        return {**fault, "state": self.state, "passed": self.passed, "call": self.call}

    def consume_skip(self) -> bool:
        """Count a selected call, and return whether it passes because of `skip`."""
        passes = self.passed < self.fault.skip
        self.passed += passes
        return passes

    async def trigger(self, call: InterceptedCall) -> None:
        """Let the fault happen to `call`."""
        self.call = call.logged_call
        self.state = "held" if self.fault.holds_call else "triggered"
        try:
            await self.fault.apply(call, self)
        finally:
            self.state = "triggered"

    async def transform_response(self, fault: ResponseFault, call: InterceptedCall) -> None:
        """Replace the response to `call` if the fault applies to it. No other call gets this fault meanwhile."""
        self.is_matching = True
        try:
            response = await call.capture()
            transformed = fault.transform(response)
            if transformed and not self.consume_skip():
                self.call, self.state = call.logged_call, "triggered"
                response = transformed
        finally:
            self.is_matching = False
        await call.send_response(response)


class FaultQueue:
    """The planned faults, in the order in which they happen."""

    def __init__(self) -> None:
        self._planned: list[PlannedFault] = []
        self._size = 0  # bytes of all faults as JSON

    def plan(self, faults: Iterable[Fault]) -> None:
        """Append all of `faults`, or none. Raises TooManyFaults."""
        planned = [PlannedFault(fault) for fault in faults]
        size = self._size + sum(len(msgspec.json.encode(each.fault)) for each in planned)
        if len(self._planned) + len(planned) > MAX_PLANNED_FAULTS or size > MAX_PLANNED_BYTES:
            raise TooManyFaults("The queue of faults is full. Clear it with DELETE first; triggered faults count too.")
        self._planned += planned
        self._size = size

    def to_list(self) -> list[dict[str, Any]]:
        """Return every fault since the last `clear`, in order, triggered ones included."""
        return [planned.to_dict() for planned in self._planned]

    def release(self) -> int:
        """Release every call that is held now, and return how many."""
        held = [planned for planned in self._planned if planned.state == "held" and not planned.released.is_set()]
        for planned in held:
            planned.released.set()
        return len(held)

    def clear(self) -> None:
        """Remove all faults, and release the calls that they hold."""
        self.release()
        self._planned.clear()
        self._size = 0

    async def dispatch(self, call: InterceptedCall) -> None:
        """Forward `call`, with the active fault if that selects it."""
        planned = next((each for each in self._planned if each.state == "planned" and not each.is_matching), None)
        if planned is None or not planned.fault.matches(**call.target):
            await call.forward()
        elif isinstance(planned.fault, ResponseFault):
            await planned.transform_response(planned.fault, call)
        elif planned.consume_skip():
            await call.forward()
        else:
            await planned.trigger(call)
