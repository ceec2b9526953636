"""The service over HTTP: one method for each endpoint of both APIs, and one retry loop. Threads may share a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from outbound_transfer.client import events, transport
from outbound_transfer.client.errors import (
    CallsStopped,
    InvalidDelivery,
    InvalidState,
    MalformedResponse,
    NotFound,
    Rehearsed,
    WrongTransfer,
)
from outbound_transfer.client.models import (
    Attached,
    File,
    Transfer,
    TransferPage,
    Upload,
    decode_page,
    decode_pickups,
    decode_transfer,
    identity_of,
)
from outbound_transfer.client.new_transfer import NewTransfer
from outbound_transfer.client.retry import RetryHook, RetryPolicy, log_retry, parse_http_date, retry
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.transport import AttemptHook, Request, Response
from outbound_transfer.client.wording import is_valid_unicode

T = TypeVar("T")

#: Maximum ``limit`` of a page of transfers and of a page of events (service-api.md, R59).
MAX_PAGE_SIZE: Final = 100
MAX_EVENTS_PER_PAGE: Final = 1_000

#: Bytes. A page of the feed is read as a whole, so that it is loaded completely or not at all.
MAX_FEED_PAGE_BYTES: Final = 256 * 1024 * 1024

#: Seconds: a clock that is further off than this is corrected by no more.
MAX_CLOCK_ERROR: Final = 60.0

#: Creates that may end in doubt: each may leave a draft that nobody knows, unsent, unbilled and gone in 30 days.
MAX_DRAFTS: Final = 2


class Client:
    """The calls of one account. Use it as a context manager, or call :meth:`close`.

    Each method repeats its call as the policy allows.

    :param settings: address and keys of the account.
    :param policy: limits of retries.
    :param sleep: waits between two attempts.
    :param on_attempt: surrounds every attempt.
    :param on_retry: called before each wait between two attempts.
    :param secrets: texts that no error may quote, besides the keys; more may be added.
    :ivar clock_difference: seconds by which the service's clock is ahead; None if it has not said its time.
    :raises InvalidSettings: a variable of the environment, such as NO_PROXY or SSL_CERT_FILE, is unusable.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008  # it is frozen
        sleep: Callable[[float], object] | None = None,
        on_attempt: AttemptHook = lambda _: nullcontext(lambda _: None),
        on_retry: RetryHook = log_retry,
        secrets: Iterable[str] = (),
    ) -> None:
        self.settings, self._policy, self._stopped = settings, policy, threading.Event()
        self._sleep, self._on_attempt, self._on_retry = sleep or self._stopped.wait, on_attempt, on_retry
        # Both keys, as a peer may have seen either.
        self.secrets = {settings.transfer_api_key, settings.event_api_key, *secrets}
        self._was_reached = False
        self.clock_difference: float | None = None
        self._http = transport.open_client(settings)
        self._users, self._lock = 1, threading.Lock()  # who opened it, and the attempts that are under way

    @property
    def clock_ahead(self) -> float:
        """Seconds by which the service's clock is ahead, at most a minute; 0 if it has not said its time."""
        return min(max(self.clock_difference or 0.0, -MAX_CLOCK_ERROR), MAX_CLOCK_ERROR)

    # The transfer interface.

    def create_transfer(self, new: NewTransfer) -> Transfer:
        """POST /v1/transfers: create a draft (service-api.md, R22).

        :param new: as built by :func:`.new_transfer.build_new_transfer`.
        :raises WrongTransfer: the response shows another transfer.
        """
        self.secrets.update(new.secrets)
        request = Request("create", "POST", "/v1/transfers", body=msgspec.json.encode(new))
        transfer = self._retry("create", lambda _: self._call(request, _transfer), MAX_DRAFTS)
        if not transfer.is_draft or transfer.files or identity_of(transfer) != identity_of(new):
            raise WrongTransfer(
                f"create: the response shows transfer {transfer.id} ({transfer.status}), which is not the "
                "requested draft"
            )
        return transfer

    def get_transfer(self, transfer_id: str) -> Transfer:
        """GET /v1/transfers/{transfer_id}: a draft or a sent transfer, with its files (service-api.md, R29)."""
        return self._get(transfer_id, decode_transfer)

    def find_transfer(self, transfer_id: str) -> Transfer | None:
        """Return a transfer; None if the key sees none of this id (any more), for example a discarded draft."""
        try:
            return self.get_transfer(transfer_id)
        except NotFound:
            return None

    def get_pickups(self, transfer_id: str) -> Transfer:
        """As :meth:`get_transfer`, with a response that says of every recipient whether they have picked up."""
        return self._get(transfer_id, decode_pickups)

    def _get(self, transfer_id: str, read: Callable[[bytes], Transfer]) -> Transfer:
        def decode(response: Response) -> Transfer:
            transfer = read(response.body)
            if transfer.id != transfer_id:
                raise MalformedResponse(f"get: the response shows another transfer than {transfer_id}")
            return transfer

        return self._repeat(Request("get", "GET", _path(transfer_id)), decode)

    def list_transfers(
        self, *, status: str = "all", limit: int = MAX_PAGE_SIZE, cursor: str | None = None
    ) -> TransferPage:
        """GET /v1/transfers: one page of sent transfers, newest first (service-api.md, R26, R27).

        :param status: ``all``, or a status of a sent transfer (service-api.md, R26).
        :param limit: 1 to 100.
        :param cursor: ``next_cursor`` of the previous page.
        """
        params: dict[str, str | int] = {"limit": limit, "status": status}
        if cursor is not None:
            params["cursor"] = cursor
        request = Request("list", "GET", "/v1/transfers", params=params)
        return self._repeat(request, lambda response: decode_page(response.body))

    def attach_file(
        self, transfer_id: str, upload: Upload, before_attempt: Callable[[], object] = lambda: None
    ) -> Attached:
        """POST /v1/transfers/{transfer_id}/files: attach a file; 200 instead of 201 if the name exists (R30 to R32).

        :param before_attempt: called before each attempt; an error that it raises ends the call.
        """
        checked = replace(upload, chunks=lambda: self._body(upload))
        request = Request("attach", "POST", _path(transfer_id, "files"), upload=checked)

        def attempt(is_doubtful: bool) -> Attached:
            before_attempt()
            return self._call(
                request, lambda response: Attached(_decode(File, response), response.status == 201, is_doubtful)
            )

        return self._retry("attach", attempt)

    def list_files(self, transfer_id: str) -> tuple[File, ...]:
        """GET /v1/transfers/{transfer_id}/files: all files in one response (service-api.md, R34)."""
        request = Request("list_files", "GET", _path(transfer_id, "files"))
        return self._repeat(request, lambda response: _decode(_Files, response).data)

    def get_file(self, transfer_id: str, file_id: str) -> File:
        """GET /v1/transfers/{transfer_id}/files/{file_id}: the record of one file (service-api.md, R34)."""
        request = Request("get_file", "GET", _path(transfer_id, "files", file_id))
        return self._repeat(request, lambda response: _decode(File, response))

    def remove_file(self, transfer_id: str, file_id: str, before_attempt: Callable[[], object] = lambda: None) -> None:
        """DELETE /v1/transfers/{transfer_id}/files/{file_id}: remove a file from a draft, if it is there (R20, R34).

        :param before_attempt: called before each attempt; an error that it raises ends the call.
        """
        with suppress(NotFound):
            self._delete("remove", _path(transfer_id, "files", file_id), before_attempt)

    def discard_transfer(self, transfer_id: str) -> None:
        """DELETE /v1/transfers/{transfer_id}: discard a draft (service-api.md, R35).

        :raises InvalidState: it was sent.
        :raises NotFound: the key sees none of this id; so it is after an earlier call, too.
        """
        self._delete("discard", _path(transfer_id))

    def _delete(self, operation: str, path: str, before_attempt: Callable[[], object] = lambda: None) -> None:
        def attempt(is_doubtful: bool) -> None:
            before_attempt()
            try:
                self._call(Request(operation, "DELETE", path), lambda _: None)
            except NotFound:
                if not is_doubtful:  # otherwise, an earlier attempt has been applied
                    raise

        self._retry(operation, attempt)

    def send_once(self, transfer_id: str) -> Transfer:
        """POST /v1/transfers/{transfer_id}/send, in one attempt: bills the account and emails the recipients (R36).

        The service sends a draft once: it responds 409 to a second send, and a read shows whether an earlier one was
        applied (R37). So an attempt in doubt is repeated, by :meth:`retry` around this.

        :return: the transfer, which this attempt or an earlier one has sent.
        :raises InvalidState: it is a draft without files.
        :raises MalformedResponse: in doubt: the service shows a draft; after 409, one with files.
        :raises Rehearsed: the connection rehearses; no request was made.
        """
        self.check_sends()
        try:
            transfer = self._call(Request("send", "POST", _path(transfer_id, "send")), _transfer)
        except InvalidState:
            transfer = self.get_transfer(transfer_id)
            if transfer.is_draft and not transfer.files:
                raise
        if transfer.is_draft:
            raise MalformedResponse(f"send: the service shows that {transfer_id} is still a draft")
        return transfer

    def check_sends(self) -> None:
        """:raises Rehearsed: the connection rehearses: no send is requested."""
        if self.settings.rehearses:
            raise Rehearsed("The connection rehearses: nothing is sent")

    def send_transfer(self, transfer_id: str) -> Transfer:
        """Send a draft; see :meth:`send_once`."""
        return self.retry("send", lambda: self.send_once(transfer_id))

    # The event feed.

    def read_events(self, *, cursor: int = 0, limit: int = MAX_EVENTS_PER_PAGE) -> events.Page:
        """GET /v1/events: the events after ``cursor``, oldest first (service-api.md, R40 to R44).

        A success uses up the account's one page a minute (R58).

        :param cursor: ``next_cursor`` of the previous page; 0 for the beginning.
        :param limit: 1 to 1,000.
        """
        params = {"cursor": cursor, "limit": limit}
        request = Request("events", "GET", "/v1/events", params=params, is_feed=True, max_bytes=MAX_FEED_PAGE_BYTES)
        return self._repeat(request, lambda response: events.read_page(response.headers, response.body, cursor=cursor))

    def probe_feed(self) -> None:
        """Read the feed at an invalid cursor: 400 if the key is valid, else 401; does not use up the rate."""
        params: dict[str, str | int] = {"cursor": "none", "limit": 1}
        self._repeat(Request("events", "GET", "/v1/events", params=params, is_feed=True), lambda _: None)

    # How.

    def retry(self, operation: str, attempt: Callable[[], T]) -> T:
        """Repeat an attempt, of one call or several, as the policy allows; see :func:`.retry.retry`."""
        return self._retry(operation, lambda _: attempt())

    def _retry(self, operation: str, attempt: Callable[[bool], T], max_in_doubt: int | None = None) -> T:
        return retry(
            operation,
            attempt,
            self._policy,
            sleep=self._wait,
            on_retry=self._on_retry,
            was_reached=lambda: self._was_reached,
            max_in_doubt=max_in_doubt,
        )

    def _repeat(self, request: Request, decode: Callable[[Response], T]) -> T:
        return self.retry(request.operation, lambda: self._call(request, decode))

    def _call(self, request: Request, decode: Callable[[Response], T]) -> T:
        with self._lock:
            self._users += 1
        try:
            response = transport.send(self._http, self.settings, request, self._on_attempt, self.secrets)
        finally:
            self.close()
        self._was_reached = True
        if date := parse_http_date(response.headers.get("date")):
            self.clock_difference = date.timestamp() - time.time()
        return transport.decode_response(request, response, decode, self.secrets)

    def _wait(self, seconds: float) -> None:
        self._sleep(seconds)
        self._check_not_stopped()

    def _body(self, upload: Upload) -> Iterator[bytes]:
        for chunk in upload.body():
            self._check_not_stopped()
            yield chunk

    def _check_not_stopped(self) -> None:
        if self._stopped.is_set():
            raise CallsStopped

    def stop(self) -> None:
        """Make the calls of other threads end soon, for good: uploads break off, and no call waits for a retry.

        They raise :class:`.CallsStopped`. A request that is sent to its last byte is not broken off.
        """
        self._stopped.set()

    def close(self) -> None:
        """Close the connections once no other thread makes a call: those that connect meanwhile would stay open."""
        with self._lock:
            self._users -= 1
        if not self._users:
            self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Files(msgspec.Struct):
    data: tuple[File, ...]


def _path(*parts: str) -> str:
    # Ids are opaque and may come from users, so each is quoted as a whole and cannot lead to another path.
    if not all(isinstance(part, str) and part.strip(".") and is_valid_unicode(part) for part in parts):
        raise InvalidDelivery(f"not an id of the service: {parts!r}")
    return "/".join(("/v1/transfers", *(quote(part, safe="") for part in parts)))


def _decode(kind: type[T], response: Response) -> T:
    return msgspec.json.decode(response.body, type=kind)


def _transfer(response: Response) -> Transfer:
    return decode_transfer(response.body)
