"""A call and its response as data: what to request from an endpoint, and how to decode what it returns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec

from outbound_transfer.protocol.errors import CallError, MalformedResponse, ServiceError, SourceChanged
from outbound_transfer.protocol.redaction import redact
from outbound_transfer.protocol.retry_after import parse_retry_after

T = TypeVar("T")

#: A series of calls as a generator. It yields a call, receives the decoded response (or the call's error is thrown into
#: it), and returns its result::
#:
#:     def find_transfer(transfer_id: str) -> Flow[Transfer | None]:
#:         try:
#:             return (yield endpoints.get_transfer(transfer_id))
#:         except NotFound:
#:             return None
#:
#: A flow does no I/O. :mod:`outbound_transfer.client.drivers` runs it, synchronously or asynchronously.
Flow: TypeAlias = Generator["Call[Any]", Any, T]

#: Maximum size of a response body, unless the call sets another.
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024


class Api(Enum):
    """The two interfaces, each with a key of its own (service-api.md, R6 and R9)."""

    TRANSFER = "transfer"
    FEED = "feed"


class Operation(Enum):
    """The endpoints by name, as in metrics and logs (service-api.md, Transfer interface and Event feed)."""

    CREATE = "create"
    LIST = "list"
    GET = "get"
    ATTACH = "attach"
    LIST_FILES = "list_files"
    GET_FILE = "get_file"
    REMOVE = "remove"
    DISCARD = "discard"
    SEND = "send"
    EVENTS = "events"


@dataclass(frozen=True)
class Response:
    """An HTTP response.

    :ivar headers: by name in lower case.
    :ivar after_in_doubt_attempt: whether an earlier attempt of the same call may have been applied.
    :ivar secrets: texts that no error may quote, such as the key.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    after_in_doubt_attempt: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Upload:
    """A file to attach.

    :ivar name: name of the file at the service.
    :ivar size: in bytes.
    :ivar chunks: returns the content; each call starts at the first byte.
    :ivar location: path or URI of the file, for lineage; "" if there is none.
    """

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]
    location: str = ""

    def body(self) -> Iterator[bytes]:
        """Yield the chunks that are not empty.

        :raises SourceChanged: there are more or fewer than ``size`` bytes, so the service would store another file.
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
class Reconciliation(Generic[T]):
    """How to find out whether a call in doubt was applied.

    :ivar query: the call that shows it.
    :ivar applied_result: returns the result of the call in doubt from the query's result; None if it was not applied.
    :ivar warning: text for the user when the query fails.
    :ivar contradicts: whether the query's result contradicts a rejection (409 invalid_state) of the call, for example
        because a cache returned an old response.
    """

    query: Call[Any]
    applied_result: Callable[[Any], T | None]
    warning: str
    contradicts: Callable[[Any], bool] = lambda _: False


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request to an endpoint, and how to decode its response.

    :ivar path: below the connection's address; starts with ``/v1``.
    :ivar decode: returns the result from a successful response.
    :ivar reconciliation: what to do before repeating a call in doubt; None if a repeat is harmless.
    :ivar max_in_doubt_attempts: number of attempts that may end in doubt; None if only the retry policy limits them.
    :ivar secrets: texts of the request that no error may quote.
    :ivar max_response_bytes: a larger body raises :class:`.errors.MalformedResponse`.
    """

    operation: Operation
    method: str
    path: str
    decode: Callable[[Response], T]
    params: Mapping[str, str | int] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    upload: Upload | None = None
    api: Api = Api.TRANSFER
    reconciliation: Reconciliation[T] | None = None
    max_in_doubt_attempts: int | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    max_response_bytes: int = MAX_RESPONSE_BYTES


def decode_response(call: Call[T], response: Response) -> T:
    """Return the result of a call.

    :raises ServiceError: an error response, as the class of its code and status (service-api.md, R48).
    :raises MalformedResponse: a successful status with an undocumented body or headers.
    """
    if not 200 <= response.status < 300:
        raise error_from(call, response)
    try:
        return call.decode(response)
    except MalformedResponse as error:
        failure = error
    except _DECODE_ERRORS as error:
        failure = MalformedResponse(f"{call.operation.value}: the response is not as documented: {error}")
    failure.__context__ = None  # the original error holds bytes of the response
    raise failure


#: Raised by msgspec for unexpected bytes or JSON, and for JSON that is nested too deeply.
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


#: Statuses with far-reaching conclusions: the key is rejected, the transfer is missing, the send was already applied.
#: The service adds an error object to every error (service-api.md, R15); without it, a proxy or gateway has responded.
_CONCLUSIVE_STATUSES: Final = frozenset(range(400, 500)) - {400, 411, 413, 429}


class _ErrorObject(msgspec.Struct):
    error: str = ""
    message: str | None = None


def _transfer_id_of(call: Call[Any]) -> str:
    """Return the id in the path; "" if there is none."""
    return unquote("".join(call.path.split("/")[3:4]))


def error_from(call: Call[Any], response: Response) -> CallError:
    """Return the error for an unsuccessful response. Its texts are untrusted, so they are shortened and redacted."""
    if response.status // 100 == 3:
        return MalformedResponse(
            f"{call.operation.value}: redirects (status {response.status}) are not followed, "
            "because the key must not leave the connection's own address. Check the connection's host."
        )
    try:
        payload = msgspec.json.decode(response.body, type=_ErrorObject)
    except _DECODE_ERRORS:
        payload = _ErrorObject()  # errors of the feed have no documented body (R49), and proxies respond with HTML
    if not payload.error and call.api is Api.TRANSFER and response.status in _CONCLUSIVE_STATUSES:
        return MalformedResponse(
            f"{call.operation.value}: status {response.status} without the service's error object: "
            "a proxy or gateway responded in its place. Check the connection's host and the proxies on the way."
        )
    retry_after = parse_retry_after(response.headers.get("retry-after"), date=response.headers.get("date"))
    secrets = (*call.secrets, *response.secrets)
    # A documented code stays, even if a word of it equals a secret.
    code = payload.error if ServiceError.knows(payload.error) else redact(payload.error, secrets)
    message = redact(payload.message or "", secrets)
    if call.upload:
        message = f"{call.upload.name!r}: {message}"
    elif response.status == 404 and (transfer_id := _transfer_id_of(call)):  # the one that the advice is about
        message = f"transfer '{redact(transfer_id, secrets)}': {message or 'the service gave no message'}"
    error = ServiceError.of(response.status, code, message, retry_after)
    if not payload.error and call.api is Api.TRANSFER:
        error.in_doubt = True  # a proxy responded, and cannot know whether the service applied the call
    return error
