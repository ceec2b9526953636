"""One request and its answer, as data: what an endpoint asks, and how its answer is read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from outbound_transfer.protocol.errors import CallError, MalformedAnswer, ServiceError, SourceChanged
from outbound_transfer.protocol.redaction import clean as _clean
from outbound_transfer.protocol.retry_after import seconds_to_wait

T = TypeVar("T")

#: A conversation: yields calls, is sent what each was answered (or thrown its error), returns its result.
Flow: TypeAlias = Generator["Call[Any]", Any, T]

#: The longest answer that is read, in bytes, where a call does not say otherwise.
MAX_ANSWER: Final = 16 * 1024 * 1024


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
    """An HTTP answer.

    :ivar headers: their names are in lower case.
    :ivar after_unclear: an earlier try may have taken effect.
    :ivar secrets: texts that no error may quote, whichever call brought them out: the key above all.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    after_unclear: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Upload:
    """A file's bytes for one call. ``chunks()`` starts from the first byte each time it is called.

    :ivar location: the path or URI of the file, for lineage; "" where it comes from none.
    """

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]
    location: str = ""

    def body(self) -> Iterator[bytes]:
        """The chunks, none of them empty.

        :raises SourceChanged: they are not ``size`` bytes, and the service would store another file than is meant.
        """
        left = self.size
        for chunk in filter(None, self.chunks()):
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left:
            raise SourceChanged(f"{self.name!r} is not the {self.size} bytes that were declared")


@dataclass(frozen=True)
class Settlement(Generic[T]):
    """How to learn what an unclear call did.

    :ivar question: the call to ask.
    :ivar landed: gives the unclear call's result of the answer, or None where it had no effect.
    :ivar doubt: what to tell a person where the question cannot be asked.
    :ivar contradicts: whether an answer that shows no effect cannot be true where the call was refused as done: an old
        one, of a cache perhaps.
    """

    question: Call[Any]
    landed: Callable[[Any], T | None]
    doubt: str
    contradicts: Callable[[Any], bool] = lambda _: False


@dataclass(frozen=True)
class Call(Generic[T]):
    """One endpoint with its arguments.

    :ivar path: below the connection's address, begins with ``/v1``.
    :ivar read: makes the result of a successful answer.
    :ivar settle: set where a repeat must not be made blindly: what is asked first.
    :ivar unclear_tries: so many tries may end unclear; None where the retry policy alone says when to stop.
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
    unclear_tries: int | None = None
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
    except MalformedAnswer as error:
        failure = error
    except _UNREADABLE as error:
        failure = MalformedAnswer(f"{call.operation.value}: the answer is not as documented: {error}")
    failure.__context__ = None  # what is behind it holds the answer's bytes
    raise failure


#: What msgspec raises for bytes that are not the JSON that was expected; the last is for JSON nested without end.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


#: Statuses from which much is concluded: a key is refused, a transfer is gone, a send was done. The service gives every
#: error an error object (service.md, Error object), so one of these without it is a proxy's or a gateway's word.
_VERDICTS: Final = frozenset(range(400, 500)) - {400, 411, 413, 429}


class _ErrorObject(msgspec.Struct):
    error: str = ""
    message: str | None = None


def error_of(call: Call[Any], answer: Answer) -> CallError:
    """The error of an unsuccessful answer; its texts are hostile, so they are shortened and cleaned."""
    if answer.status // 100 == 3:
        return MalformedAnswer(
            f"{call.operation.value}: status {answer.status} redirects, which is not followed: "
            "the key goes only to the connection's own address. Check the connection's host."
        )
    try:
        said = msgspec.json.decode(answer.body, type=_ErrorObject)
    except _UNREADABLE:
        said = _ErrorObject()  # the feed's error bodies are "not shown", and proxies answer with HTML
    if not said.error and call.api is Api.TRANSFER and answer.status in _VERDICTS:
        return MalformedAnswer(
            f"{call.operation.value}: status {answer.status} without the service's error object: "
            f"something between here and the service answered. Check the connection's host and the proxies on the way."
        )
    wait = seconds_to_wait(answer.headers.get("retry-after"), date=answer.headers.get("date"))
    secrets = (*call.secrets, *answer.secrets)
    # A word of a code may be somebody's answer; the code stays what it is.
    code = said.error if ServiceError.knows(said.error) else _clean(said.error, secrets)
    message = _clean(said.message or "", secrets)
    error = ServiceError.of(answer.status, code, f"{call.upload.name!r}: {message}" if call.upload else message, wait)
    if not said.error and call.api is Api.TRANSFER:
        error.unclear = True  # nor does a proxy know whether the service has done it
    return error
