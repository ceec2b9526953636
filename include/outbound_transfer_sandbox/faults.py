"""Planned faults: what goes wrong with which call under /v1, decided beforehand and accounted for.

A plan is data. Plans stand in a queue, which is kept in memory and gone after a restart; the first that is not met is
active, and the others wait for it. The request log shows what reached the service, not what its caller was told: a call
that a fault stops is in the account of the faults alone.

`method` and `path` say which calls are meant: `*` is any method, and in a path (shell patterns) any text, slashes
included. `skip` lets that many of them pass, counted from when the plan becomes active.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from . import unspecified
from .api.exchange import Exchange
from .errors import invalid_request
from .fault_kinds import Altering, Fault


@dataclass
class Plan:
    """A fault and what became of it: `held` while its call waits, then `met`, with the call that met it."""

    fault: Fault
    state: Literal["planned", "held", "met"] = "planned"
    passed: int = 0
    call: dict[str, str] | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    is_tried: bool = False

    def account(self) -> dict[str, Any]:
        fault: dict[str, Any] = msgspec.to_builtins(self.fault)
        return {**fault, "state": self.state, "passed": self.passed, "call": self.call}

    def may_pass(self) -> bool:
        """Whether one more call is let through; counts it."""
        passes = self.passed < self.fault.skip
        self.passed += passes
        return passes

    async def meet(self, exchange: Exchange) -> None:
        self.call = exchange.record
        self.state = "held" if self.fault.waits else "met"
        try:
            await self.fault.apply(exchange, self)
        finally:
            self.state = "met"

    async def try_to_alter(self, fault: Altering, exchange: Exchange) -> None:
        """Only its answer tells whether this call is meant, so until then the plan is nobody else's."""
        self.is_tried = True
        try:
            answer = await exchange.answer()
            altered = fault.alter(answer)
            if altered and not self.may_pass():
                self.call, self.state = exchange.record, "met"
                answer = altered
        finally:
            self.is_tried = False
        await exchange.reply(answer)


class Faults:
    """The queue."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []
        self._size = 0  # in bytes, of what was planned

    def plan(self, faults: Iterable[Fault]) -> None:
        """Appends all of them or none. Raises 400 invalid_request when too many are kept."""
        plans = [Plan(fault) for fault in faults]
        size = self._size + sum(len(msgspec.json.encode(plan.fault)) for plan in plans)
        if len(self._plans) + len(plans) > unspecified.PLANNED_FAULTS or size > unspecified.PLANNED_BYTES:
            raise invalid_request("Too many faults are kept, those that were met included: DELETE them first.")
        self._plans += plans
        self._size = size

    def account(self) -> list[dict[str, Any]]:
        """Every plan in its order, met or not, since the last `clear`."""
        return [plan.account() for plan in self._plans]

    def release(self) -> int:
        """Lets go of every call that is held now; their number."""
        held = [plan for plan in self._plans if plan.state == "held" and not plan.released.is_set()]
        for plan in held:
            plan.released.set()
        return len(held)

    def clear(self) -> None:
        """Forgets all plans; calls that are held go on."""
        self.release()
        self._plans.clear()
        self._size = 0

    async def interfere(self, exchange: Exchange) -> None:
        """Sends a call on its way, with the active fault if it means this call."""
        plan = next((plan for plan in self._plans if plan.state == "planned" and not plan.is_tried), None)
        if plan is None or not plan.fault.means(**exchange.call):
            await exchange.proceed()
        elif isinstance(plan.fault, Altering):
            await plan.try_to_alter(plan.fault, exchange)
        elif plan.may_pass():
            await exchange.proceed()
        else:
            await plan.meet(exchange)


class Faulty:
    """The layer that lets planned faults happen to calls under /v1, and leaves the control API alone."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/v1/"):
            await self._faults.interfere(Exchange(self._app, scope, receive, send))
        else:
            await self._app(scope, receive, send)
