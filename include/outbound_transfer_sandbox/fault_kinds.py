"""The kinds of planned faults: what each does to a call (how they are planned and met: see `faults`).

What an answer is made to say is given as text: its message may quote what the test sent, in any form, a field's value
may be what no JSON library writes (`"\\ud800"`), a header anything that a line can hold.

The kinds that alter an answer mean only the answers that can bear it, a feed page for instance; others go out untouched
and are not counted. Where `effect` can be chosen, `before` means that the service never sees the call, or sees it late
(`delay`, `hold`), and `after` that it does what was asked for and its answer is lost, late or another.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from asyncio import sleep
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from .api.exchange import Answer, Exchange, raw_headers

if TYPE_CHECKING:
    from .faults import Plan

Effect = Literal["before", "after"]
Count = Annotated[int, Meta(ge=0, le=10**12)]
HeaderName = Annotated[str, Meta(pattern=r"\A[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z", max_length=100)]
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
    """An error answer. Without `code`, the one that service.md has for the status; `""`: a proxy's page, not JSON.

    `message` is what it says, on a proxy's page too; `body` replaces all of it. `headers` come in addition.
    """

    status: Annotated[int, Meta(ge=400, le=599)]
    code: Content | None = None
    message: Content = "A planned fault."
    body: Content | None = None
    retry_after: HeaderText | None = None
    headers: dict[HeaderName, HeaderText] = {}
    effect: Effect = "before"

    async def apply(self, exchange: Exchange, plan: Plan) -> None:  # noqa: ARG002
        if self.effect == "after":
            await exchange.answer()
        await exchange.reply(self._answer())

    def _answer(self) -> Answer:
        code = _CODES.get(self.status, "invalid_request") if self.code is None else self.code
        media_type, body = "text/html", f"<html><body>{self.message}</body></html>".encode()
        if code:
            media_type, body = "application/json", msgspec.json.encode({"error": code, "message": self.message})
        added = {name.lower(): value for name, value in self.headers.items()}
        given = {"content-type": media_type, "retry-after": self.retry_after, **added}
        answer = Answer(self.status, raw_headers(given.items()))
        return answer.with_body(body if self.body is None else self.body.encode())


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
        await sleep(self.seconds)


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


class Altering(Fault, frozen=True, kw_only=True):
    """The call takes effect, and something else is answered."""

    @abstractmethod
    def alter(self, answer: Answer) -> Answer | None:
        """None for an answer that cannot bear this fault."""


class TruncatedPage(Altering, frozen=True, kw_only=True, tag="truncated_page"):
    """A feed page without its last `cut_bytes`, its length declared as if it were whole."""

    cut_bytes: Annotated[int, Meta(ge=1)] = 10

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_body(answer.body[: -self.cut_bytes]) if _lines(answer) else None


class MalformedLine(Altering, frozen=True, kw_only=True, tag="malformed_line"):
    """A feed page with one line, counted from 0, replaced."""

    line: Count = 0
    text: Content = '{"event_id": '

    def alter(self, answer: Answer) -> Answer | None:
        lines = _lines(answer)
        if self.line >= len(lines):
            return None
        lines[self.line] = self.text.encode()
        return answer.with_body(b"".join(line + b"\n" for line in lines))


class FeedHeader(Altering, frozen=True, kw_only=True, tag="feed_header"):
    """A feed page, empty or not, with a header of another value, or without it (null)."""

    name: Literal["X-Next-Cursor", "X-Has-More", "Content-Type"]
    value: HeaderText | None = None

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_header(self.name, self.value) if _is_page(answer) else None


class Header(Altering, frozen=True, kw_only=True, tag="header"):
    """Any answer with a header of another value, or without it (null); `Date` too, and one that it did not have."""

    name: HeaderName
    value: HeaderText | None = None

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_header(self.name, self.value)


class FieldValue(Altering, frozen=True, kw_only=True, tag="field_value"):
    """A row of a listing, counted from 0, or the one thing that is answered (row 0), with `json` as its `field`.

    `json` is the text of a value, which goes out as it stands. Without `field` it replaces the row.
    """

    json: Content
    field: Content | None = None
    row: Count = 0

    def alter(self, answer: Answer) -> Answer | None:
        if not _is_json(answer):
            return None
        found, poison = msgspec.json.decode(answer.body), msgspec.Raw(self.json.encode())
        rows = found["data"] if isinstance(found, dict) and "data" in found else [found]
        if self.row >= len(rows):
            return None
        rows[self.row] = poison if self.field is None else {**rows[self.row], self.field: poison}
        return answer.with_body(msgspec.json.encode(found if "data" in found else rows[0]))


class StatusValue(Altering, frozen=True, kw_only=True, tag="status_value"):
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


class TruncatedJson(Altering, frozen=True, kw_only=True, tag="truncated_json"):
    """The first `keep_bytes` of a JSON answer, its length declared as if that were all."""

    keep_bytes: Count = 10

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_body(answer.body[: self.keep_bytes]) if _is_json(answer) else None


class MalformedJson(Altering, frozen=True, kw_only=True, tag="malformed_json"):
    """Something else in the place of a JSON answer."""

    text: Content = "{]"

    def alter(self, answer: Answer) -> Answer | None:
        return answer.with_body(self.text.encode()) if _is_json(answer) else None


class NotHttp(Fault, frozen=True, kw_only=True, tag="not_http"):
    """`text` in the place of an answer, and the end of the connection: the call takes no effect, or (`after`) does."""

    text: Content = "SSH-2.0-OpenSSH_9.6\r\n"
    effect: Effect = "before"

    async def apply(self, exchange: Exchange, plan: Plan) -> None:  # noqa: ARG002
        if self.effect == "after":
            await exchange.answer()
        await exchange.hang_up_with(self.text.encode())


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
    | Header
    | FieldValue
    | StatusValue
    | TruncatedJson
    | MalformedJson
    | NotHttp
)


def _is_json(answer: Answer) -> bool:
    return answer.is_success and _media_type(answer) == "application/json"


def _is_page(answer: Answer) -> bool:
    return answer.is_success and _media_type(answer) == "application/x-ndjson"


def _media_type(answer: Answer) -> str:
    return re.split("[; ]", dict(answer.headers).get(b"content-type", b"").decode())[0]


def _lines(answer: Answer) -> list[bytes]:
    return answer.body.removesuffix(b"\n").split(b"\n") if answer.body and _is_page(answer) else []
