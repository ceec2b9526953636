"""One request and its answer, as data: what an endpoint asks, and how its answer is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from outbound_transfer.protocol.errors import CallError, MalformedAnswer, ServiceError
from outbound_transfer.protocol.retry_after import seconds_to_wait

T = TypeVar("T")

#: A conversation: yields calls, is sent what each was answered (or thrown its error), returns its result.
Flow: TypeAlias = Generator["Call[Any]", Any, T]

#: The longest answer that is read, in bytes, where a call does not say otherwise.
MAX_ANSWER: Final = 16 * 1024 * 1024

_MESSAGE_LENGTH: Final = 500


class Api(Enum):
    """The two interfaces, each with a key of its own (service.md, Authentication)."""

    TRANSFER = "transfer"
    FEED = "feed"


class Operation(Enum):
    """The endpoints (service.md, Endpoints), by what they do."""

    CREATE = "create"
    LIST = "list"
    GET = "get"
    ATTACH = "attach"
    LIST_FILES = "list files"
    GET_FILE = "get file"
    REMOVE = "remove"
    DISCARD = "discard"
    SEND = "send"
    EVENTS = "events"


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. Header names are in lower case; ``after_unclear``: an earlier try may have taken effect."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    after_unclear: bool = False


@dataclass(frozen=True)
class Upload:
    """A file's bytes for one call. ``chunks()`` starts from the first byte each time it is called."""

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Settlement(Generic[T]):
    """How to learn what an unclear call did: ask ``question``; ``landed`` gives the call's result, or None."""

    question: Call[Any]
    landed: Callable[[Any], T | None]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One endpoint with its arguments.

    :ivar path: below the connection's address, begins with ``/v1``.
    :ivar read: makes the result of a successful answer.
    :ivar settle: set where a repeat is refused, and a read tells whether the first try landed.
    :ivar secrets: texts of the request that no error may quote.
    """

    operation: Operation
    method: str
    path: str
    read: Callable[[Answer], T]
    params: Mapping[str, str | int] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    upload: Upload | None = None
    api: Api = Api.TRANSFER
    settle: Settlement[T] | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    max_answer: int = MAX_ANSWER


def result_of(call: Call[T], answer: Answer) -> T:
    """The result of a call.

    :raises ServiceError: of the class of the error answer (service.md, Errors).
    :raises MalformedAnswer: a successful status whose body or headers are not as documented.
    """
    if not 200 <= answer.status < 300:
        raise error_of(call, answer)
    try:
        return call.read(answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedAnswer(f"{call.operation.value}: the answer is not as documented: {error}") from None


class _ErrorObject(msgspec.Struct):
    error: str = ""
    message: str = ""


def error_of(call: Call[Any], answer: Answer) -> CallError:
    """The error of an unsuccessful answer; its texts are hostile, so they are shortened and cleaned."""
    if answer.status // 100 == 3:
        return MalformedAnswer(
            f"{call.operation.value}: status {answer.status} redirects, which is not followed: "
            "the key goes only to the connection's own address. Check the connection's host."
        )
    try:
        said = msgspec.json.decode(answer.body, type=_ErrorObject)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _ErrorObject()  # the feed's error bodies are "not shown", and proxies answer with HTML
    wait = seconds_to_wait(answer.headers.get("retry-after"), date=answer.headers.get("date"))
    return ServiceError.of(answer.status, _clean(said.error, call), _clean(said.message, call), wait)


def _clean(text: str, call: Call[Any]) -> str:
    for secret in call.secrets:
        text = text.replace(secret, "***")
    return re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]+", " ", text)[:_MESSAGE_LENGTH]
