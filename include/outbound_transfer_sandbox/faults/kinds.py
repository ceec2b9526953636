"""The kinds of faults: what each one does to a call. The queue decides which call that is.

Texts in a response are sent as given: a message may quote any part of the request, `json` may be a value that no JSON
library writes (`"\\ud800"`), and a header may have any characters that fit into a line.

A fault that changes responses applies only to those that have the part it changes, for example to a page of the feed;
other responses pass and do not count. With `effect` = `before`, the service never receives the call, or receives it
late (`delay`, `hold`). With `after`, it applies the call, and the response is lost, late or replaced.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from asyncio import sleep
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from .interception import CapturedResponse, InterceptedCall, raw_headers

if TYPE_CHECKING:
    from .queue import PlannedFault

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
    """The fields that every kind has."""

    method: str = "*"
    path: str = "*"
    skip: Count = 0

    #: Whether the fault delays its call; its state is `held` meanwhile.
    holds_call: ClassVar[bool] = False

    def matches(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and fnmatchcase(path, self.path)

    @abstractmethod
    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:
        """Let the fault happen to `call`."""


class ErrorStatus(Fault, frozen=True, kw_only=True, tag="error"):
    """An error response in JSON. `code` defaults to the status's own (service-api.md, R48).

    An empty `code` makes the response a proxy's HTML page. Both contain `message`; `body` replaces the whole body.
    `headers` are added.
    """

    status: Annotated[int, Meta(ge=400, le=599)]
    code: Content | None = None
    message: Content = "A planned fault."
    body: Content | None = None
    retry_after: HeaderText | None = None
    headers: dict[HeaderName, HeaderText] = {}
    effect: Effect = "before"

    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:  # noqa: ARG002
        if self.effect == "after":
            await call.capture()
        await call.send_response(self._response())

    def _response(self) -> CapturedResponse:
        code = _CODES.get(self.status, "invalid_request") if self.code is None else self.code
        media_type, body = "text/html", f"<html><body>{self.message}</body></html>".encode()
        if code:
            media_type, body = "application/json", msgspec.json.encode({"error": code, "message": self.message})
        added = {name.lower(): value for name, value in self.headers.items()}
        given = {"content-type": media_type, "retry-after": self.retry_after, **added}
        response = CapturedResponse(self.status, raw_headers(given.items()))
        return response.with_body(body if self.body is None else self.body.encode())


class Reset(Fault, frozen=True, kw_only=True, tag="reset"):
    """The connection is reset, immediately or instead of the response."""

    effect: Effect = "before"

    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:  # noqa: ARG002
        if self.effect == "after":
            await call.capture()
        await call.reset()


class ResetInRequest(Fault, frozen=True, kw_only=True, tag="reset_in_request"):
    """The connection is reset after `after_bytes` of the request's body, or at its end. The call is not applied."""

    after_bytes: Count

    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:  # noqa: ARG002
        await call.discard_request(self.after_bytes)
        await call.reset()


class ResetInResponse(Fault, frozen=True, kw_only=True, tag="reset_in_response"):
    """The call is applied. The connection is reset after the head and `after_bytes` of the response's body."""

    after_bytes: Count

    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:  # noqa: ARG002
        await call.send_partial_response(await call.capture(), self.after_bytes)
        await call.reset()


class _DelayedFault(Fault, frozen=True, kw_only=True):
    """The call is applied late, or its response is late. The client may have disconnected by then."""

    effect: Effect = "before"

    holds_call: ClassVar[bool] = True

    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:
        if self.effect == "before":
            await call.buffer_request()
            await self.wait(planned)
            await call.forward()
        else:
            response = await call.capture()
            await self.wait(planned)
            await call.send_response(response)

    @abstractmethod
    async def wait(self, planned: PlannedFault) -> None:
        """Wait until the call may continue."""


class Delay(_DelayedFault, frozen=True, kw_only=True, tag="delay"):
    """The call or its response is delayed by `seconds` of real time."""

    seconds: Annotated[float, Meta(gt=0, le=3600)]

    async def wait(self, planned: PlannedFault) -> None:  # noqa: ARG002
        await sleep(self.seconds)


class Hold(_DelayedFault, frozen=True, kw_only=True, tag="hold"):
    """The call or its response is held until the test releases it.

    So the test controls what happens meanwhile. With `then` = `reset`, the release resets the connection, and a call
    held `before` is never applied.
    """

    then: Literal["proceed", "reset"] = "proceed"

    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:
        if self.then == "proceed":
            await super().apply(call, planned)
        else:
            await (call.buffer_request() if self.effect == "before" else call.capture())
            await self.wait(planned)
            await call.reset()

    async def wait(self, planned: PlannedFault) -> None:
        await planned.released.wait()


class ResponseFault(Fault, frozen=True, kw_only=True):
    """The call is applied, and its response is changed."""

    @abstractmethod
    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        """Return the changed response, or None if the fault does not apply to this one."""


class TruncatedPage(ResponseFault, frozen=True, kw_only=True, tag="truncated_page"):
    """A feed page without its last `cut_bytes`. Its Content-Length matches what is left."""

    cut_bytes: Annotated[int, Meta(ge=1)] = 10

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        return response.with_body(response.body[: -self.cut_bytes]) if _lines(response) else None


class MalformedLine(ResponseFault, frozen=True, kw_only=True, tag="malformed_line"):
    """A feed page with one line, counted from 0, replaced by `text`."""

    line: Count = 0
    text: Content = '{"event_id": '

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        lines = _lines(response)
        if self.line >= len(lines):
            return None
        lines[self.line] = self.text.encode()
        return response.with_body(b"".join(line + b"\n" for line in lines))


class FeedHeader(ResponseFault, frozen=True, kw_only=True, tag="feed_header"):
    """A feed page, which may be empty, with a header changed or, if `value` is null, removed."""

    name: Literal["X-Next-Cursor", "X-Has-More", "Content-Type"]
    value: HeaderText | None = None

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        return response.with_header(self.name, self.value) if _is_feed_page(response) else None


class Header(ResponseFault, frozen=True, kw_only=True, tag="header"):
    """Any response with a header changed, added or, if `value` is null, removed. `Date` is possible too."""

    name: HeaderName
    value: HeaderText | None = None

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        return response.with_header(self.name, self.value)


class FieldValue(ResponseFault, frozen=True, kw_only=True, tag="field_value"):
    """A JSON response in which `json` replaces the `field` of a row or, without `field`, the whole row.

    Rows of a list are counted from 0; a single resource is row 0. `json` is sent as given.
    """

    json: Content
    field: Content | None = None
    row: Count = 0

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        if not _is_json(response):
            return None
        found, poison = msgspec.json.decode(response.body), msgspec.Raw(self.json.encode())
        rows = found["data"] if isinstance(found, dict) and "data" in found else [found]
        if self.row >= len(rows):
            return None
        rows[self.row] = poison if self.field is None else {**rows[self.row], self.field: poison}
        return response.with_body(msgspec.json.encode(found if "data" in found else rows[0]))


class StatusValue(ResponseFault, frozen=True, kw_only=True, tag="status_value"):
    """A response whose sent transfers get another `status`, for example one outside R17. Drafts keep theirs."""

    status: Content

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        if not _is_json(response):
            return None
        found = msgspec.json.decode(response.body)
        listed = found.get("data", [found]) if isinstance(found, dict) else []
        sent = [each for each in listed if isinstance(each, dict) and each.get("sent_at")]
        for transfer in sent:
            transfer["status"] = self.status
        return response.with_body(msgspec.json.encode(found)) if sent else None


class TruncatedJson(ResponseFault, frozen=True, kw_only=True, tag="truncated_json"):
    """A JSON response cut after `keep_bytes`. Its Content-Length matches what is left."""

    keep_bytes: Count = 10

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        return response.with_body(response.body[: self.keep_bytes]) if _is_json(response) else None


class MalformedJson(ResponseFault, frozen=True, kw_only=True, tag="malformed_json"):
    """A JSON response with `text` as its body."""

    text: Content = "{]"

    def transform(self, response: CapturedResponse) -> CapturedResponse | None:
        return response.with_body(self.text.encode()) if _is_json(response) else None


class NotHttp(Fault, frozen=True, kw_only=True, tag="not_http"):
    """`text` is written to the connection instead of a response; then the connection is closed."""

    text: Content = "SSH-2.0-OpenSSH_9.6\r\n"
    effect: Effect = "before"

    async def apply(self, call: InterceptedCall, planned: PlannedFault) -> None:  # noqa: ARG002
        if self.effect == "after":
            await call.capture()
        await call.close_with(self.text.encode())


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


def _is_json(response: CapturedResponse) -> bool:
    return response.is_success and _media_type(response) == "application/json"


def _is_feed_page(response: CapturedResponse) -> bool:
    return response.is_success and _media_type(response) == "application/x-ndjson"


def _media_type(response: CapturedResponse) -> str:
    return re.split("[; ]", dict(response.headers).get(b"content-type", b"").decode())[0]


def _lines(response: CapturedResponse) -> list[bytes]:
    return response.body.removesuffix(b"\n").split(b"\n") if response.body and _is_feed_page(response) else []
