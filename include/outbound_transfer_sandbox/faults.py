"""Planned faults: what goes wrong with which call under /v1, decided beforehand and accounted for.

A plan is data. Plans stand in a queue, which is kept in memory and gone after a restart; the first that is not met is
active, and the others wait for it. The request log shows what reached the service, not what its caller was told: a call
that a fault stops is in the account of the faults alone.

`method` and `path` say which calls are meant: `*` is any method, and in a path (shell patterns) any text, slashes
included. `skip` lets that many of them pass, counted from when the plan becomes active. The kinds that alter an answer
mean only the answers that can bear it, a feed page for instance; others go out untouched and are not counted.

Where `effect` can be chosen, `before` means that the service never sees the call, or sees it late (`delay`, `hold`),
and `after` that it does what was asked for and its answer is lost, late or another.
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from .api.exchange import Answer, Exchange, raw_headers

Effect = Literal["before", "after"]
Count = Annotated[int, Meta(ge=0, le=10**12)]
HeaderText = Annotated[str, Meta(pattern=r"\A[\x20-\x7e]*\Z", max_length=1000)]
Content = Annotated[str, Meta(max_length=1_000_000)]

_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "api_not_permitted",
    404: "not_found",
    409: "invalid_state",
    411: "length_required",
    413: "file_too_large",
    429: "rate_limited",
    500: "internal_error",
    502: "service_unavailable",
    503: "service_unavailable",
    504: "service_unavailable",
}


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every kind has."""

    method: str = "*"
    path: str = "*"
    skip: Count = 0

    #: Whether the call is on its way for longer than a moment; its plan is shown as held meanwhile.
    waits: ClassVar[bool] = False

    def means(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and fnmatchcase(path, self.path)

    @abstractmethod
    async def apply(self, exchange: Exchange, plan: Plan) -> None:
        """Let `exchange` go wrong."""


class ErrorStatus(Fault, frozen=True, kw_only=True, tag="error"):
    """An error answer. Without `code`, the one that service.md has for the status; `""`: a proxy's page, not JSON."""

    status: Annotated[int, Meta(ge=400, le=599)]
    code: Content | None = None
    retry_after: HeaderText | None = None
    effect: Effect = "before"

    async def apply(self, exchange: Exchange, plan: Plan) -> None:  # noqa: ARG002
        if self.effect == "after":
            await exchange.answer()
        await exchange.reply(self._answer())

    def _answer(self) -> Answer:
        code = _CODES.get(self.status, "invalid_request") if self.code is None else self.code
        media_type, body = ("text/html", b"<html><body>Something went wrong.</body></html>")
        if code:
            error = {"error": code, "message": "A planned fault."}
            media_type, body = "application/json", msgspec.json.encode(error)
        return Answer(
            self.status, raw_headers([("content-type", media_type), ("retry-after", self.retry_after)])
        ).with_body(body)


class Reset(Fault, frozen=True, kw_only=True, tag="reset"):
    """The connection is reset: at once, or in the place of the answer."""

    effect: Effect = "before"

    async def apply(self, exchange: Exchange, plan: Plan) -> None:  # noqa: ARG002
        if self.effect == "after":
            await exchange.answer()
        await exchange.reset()


class ResetInRequest(Fault, frozen=True, kw_only=True, tag="reset_in_request"):
    """The connection is reset when `after_bytes` of the request's body have come in, or its end: no effect."""

    after_bytes: Count

    async def apply(self, exchange: Exchange, plan: Plan) -> None:  # noqa: ARG002
        await exchange.read(self.after_bytes)
        await exchange.reset()


class ResetInResponse(Fault, frozen=True, kw_only=True, tag="reset_in_response"):
    """The call takes effect; the connection is reset after the answer's head and `after_bytes` of its body."""

    after_bytes: Count

    async def apply(self, exchange: Exchange, plan: Plan) -> None:  # noqa: ARG002
        await exchange.begin_reply(await exchange.answer(), self.after_bytes)
        await exchange.reset()


class _Late(Fault, frozen=True, kw_only=True):
    """The call takes effect late, or its answer comes late. Its caller may be gone by then."""

    effect: Effect = "before"

    waits: ClassVar[bool] = True

    async def apply(self, exchange: Exchange, plan: Plan) -> None:
        if self.effect == "before":
            await exchange.take_body()
            await self.wait(plan)
            await exchange.proceed()
        else:
            answer = await exchange.answer()
            await self.wait(plan)
            await exchange.reply(answer)

    @abstractmethod
    async def wait(self, plan: Plan) -> None:
        """Until the call may go on."""


class Delay(_Late, frozen=True, kw_only=True, tag="delay"):
    """By `seconds` of real time, whatever the service's clock does."""

    seconds: Annotated[float, Meta(gt=0, le=3600)]

    async def wait(self, plan: Plan) -> None:  # noqa: ARG002
        await asyncio.sleep(self.seconds)


class Hold(_Late, frozen=True, kw_only=True, tag="hold"):
    """Until it is released: what a test does at just this moment, it does for certain.

    With `then` = `reset` the connection is reset at its release: held `before`, the call never takes effect.
    """

    then: Literal["proceed", "reset"] = "proceed"

    async def apply(self, exchange: Exchange, plan: Plan) -> None:
        if self.then == "proceed":
            await super().apply(exchange, plan)
        else:
            await (exchange.take_body() if self.effect == "before" else exchange.answer())
            await self.wait(plan)
            await exchange.reset()

    async def wait(self, plan: Plan) -> None:
        await plan.released.wait()


class _Altered(Fault, frozen=True, kw_only=True):
    """The call takes effect, and something else is answered."""

    @abstractmethod
    def alter(self, answer: Answer) -> Answer | None:
        """None for an answer that cannot bear this fault."""


class TruncatedPage(_Altered, frozen=True, kw_only=True, tag="truncated_page"):
    """A feed page without its last `cut_bytes`, its length declared as if it were whole."""

    cut_bytes: Annotated[int, Meta(ge=1)] = 10

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_body(answer.body[: -self.cut_bytes]) if _lines(answer) else None


class MalformedLine(_Altered, frozen=True, kw_only=True, tag="malformed_line"):
    """A feed page with one line, counted from 0, replaced."""

    line: Count = 0
    text: Content = '{"event_id": '

    def alter(self, answer: Answer) -> Answer | None:
        lines = _lines(answer)
        if self.line >= len(lines):
            return None
        lines[self.line] = self.text.encode()
        return answer.with_body(b"".join(line + b"\n" for line in lines))


class FeedHeader(_Altered, frozen=True, kw_only=True, tag="feed_header"):
    """A feed page, empty or not, with a header of another value, or without it (null)."""

    name: Literal["X-Next-Cursor", "X-Has-More", "Content-Type"]
    value: HeaderText | None = None

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_header(self.name, self.value) if _is_page(answer) else None


class StatusValue(_Altered, frozen=True, kw_only=True, tag="status_value"):
    """A sent transfer, by itself or in a listing, with a status outside service.md's list. A draft stays a draft."""

    status: Content

    def alter(self, answer: Answer) -> Answer | None:
        if not _is_json(answer):
            return None
        found = msgspec.json.decode(answer.body)
        listed = found.get("data", [found]) if isinstance(found, dict) else []
        sent = [one for one in listed if isinstance(one, dict) and one.get("sent_at")]
        for transfer in sent:
            transfer["status"] = self.status
        return answer.with_body(msgspec.json.encode(found)) if sent else None


class TruncatedJson(_Altered, frozen=True, kw_only=True, tag="truncated_json"):
    """The first `keep_bytes` of a JSON answer, its length declared as if that were all."""

    keep_bytes: Count = 10

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_body(answer.body[: self.keep_bytes]) if _is_json(answer) else None


class MalformedJson(_Altered, frozen=True, kw_only=True, tag="malformed_json"):
    """Something else in the place of a JSON answer."""

    text: Content = "{]"

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_body(self.text.encode()) if _is_json(answer) else None


AnyFault = (
    ErrorStatus
    | Reset
    | ResetInRequest
    | ResetInResponse
    | Delay
    | Hold
    | TruncatedPage
    | MalformedLine
    | FeedHeader
    | StatusValue
    | TruncatedJson
    | MalformedJson
)


def _is_json(answer: Answer) -> bool:
    return answer.is_success and _media_type(answer) == "application/json"


def _is_page(answer: Answer) -> bool:
    return answer.is_success and _media_type(answer) == "application/x-ndjson"


def _media_type(answer: Answer) -> str:
    return re.split("[; ]", dict(answer.headers).get(b"content-type", b"").decode())[0]


def _lines(answer: Answer) -> list[bytes]:
    return answer.body.removesuffix(b"\n").split(b"\n") if answer.body and _is_page(answer) else []


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
        self.call = exchange.call
        self.state = "held" if self.fault.waits else "met"
        try:
            await self.fault.apply(exchange, self)
        finally:
            self.state = "met"

    async def try_to_alter(self, fault: _Altered, exchange: Exchange) -> None:
        """Only its answer tells whether this call is meant, so until then the plan is nobody else's."""
        self.is_tried = True
        try:
            answer = await exchange.answer()
            altered = fault.alter(answer)
            if altered and not self.may_pass():
                self.call, self.state = exchange.call, "met"
                answer = altered
        finally:
            self.is_tried = False
        await exchange.reply(answer)


class Faults:
    """The queue."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    def plan(self, faults: Iterable[Fault]) -> None:
        self._plans += map(Plan, faults)

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

    async def interfere(self, exchange: Exchange) -> None:
        """Sends a call on its way, with the active fault if it means this call."""
        plan = next((plan for plan in self._plans if plan.state == "planned" and not plan.is_tried), None)
        if plan is None or not plan.fault.means(**exchange.call):
            await exchange.proceed()
        elif isinstance(plan.fault, _Altered):
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
