"""The service over HTTP: one method for each endpoint of both APIs, and one retry loop. Threads may share a client."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast
from urllib.parse import quote

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_exception

from outbound_transfer.client import errors, events, models, transport
from outbound_transfer.client.errors import CallError, InvalidState, MalformedResponse, NotFound, RateLimited
from outbound_transfer.client.models import Attached, File, Transfer, TransferPage, Upload, decode_transfer
from outbound_transfer.client.new_transfer import NewTransfer
from outbound_transfer.client.settings import Settings, open_client
from outbound_transfer.client.transport import Request, Response
from outbound_transfer.wording import is_valid_unicode

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_PAGE_SIZE: Final = 100  # transfers (service-api.md, R59)
MAX_EVENTS_PER_PAGE: Final = 1_000
MAX_FEED_PAGE_BYTES: Final = 256 * 1024 * 1024  # a page is read as a whole, to be loaded completely or not at all
MAX_DRAFTS: Final = 2  # creates that may end in doubt; each may leave an unknown draft, which expires in 30 days

# Seconds between two attempts.
MIN_DELAY: Final = 1.0  # before any repeat: "Retry-After: 0" must cause no more calls than the service allows
MAX_BACKOFF: Final = 60.0  # after a failure; each delay is a random part of a backoff up to it
RATE_LIMIT_DELAY: Final = 10.0  # after 429 without a usable Retry-After: the service's window is a minute
SLOT_INTERVAL: Final = 60.0  # between two attempts to get a slot
MAX_RETRY_AFTER: Final = 600.0  # a longer wait that the service asks for is left to the task's retries

MAX_FIRST_ATTEMPTS: Final = 3  # to connect, before the service was ever reached: a wrong address fails in seconds


@dataclass(frozen=True)
class RetryPolicy:
    """Retry limits of one call (service-api.md, R50). Waits for the rate limit or a slot do not count."""

    max_attempts: int = 8  # that may fail with a transient error (5xx, broken connection, timeout)
    timeout: float = 3_600.0  # seconds that a call may wait in total, excluding waits for a slot
    slot_timeout: float = 3_600.0  # seconds that a send may wait in total for a slot; 0 leaves the wait to the caller


#: Called before each wait with the operation, the error of the attempt, and the seconds.
RetryHook = Callable[[str, CallError, float], None]


def log_retry(operation: str, error: CallError, seconds: float) -> None:
    """Log a wait and its cause."""
    log.warning("Waiting %.1f s to repeat %s: %s", seconds, operation, str(error).removeprefix(f"{operation}: "))


class Client(AbstractContextManager["Client", None]):
    """The calls of one account, each repeated as the policy allows. Use it as a context manager, or close it.

    :param sleep: waits between two attempts.
    :param on_attempt: surrounds every attempt.
    :param on_retry: called before each wait between two attempts.
    :param secrets: strings that no error may quote, in addition to the keys; more may be added.
    :raises InvalidSettings: an environment variable, such as HTTPS_PROXY or SSL_CERT_FILE, is unusable.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        policy: RetryPolicy = RetryPolicy(),  # it is frozen
        sleep: Callable[[float], object] | None = None,
        on_attempt: transport.AttemptHook = lambda _: nullcontext(lambda _: None),
        on_retry: RetryHook = log_retry,
        secrets: Iterable[str] = (),
    ) -> None:
        self.settings, self._policy, self._stopped = settings, policy, threading.Event()
        self.sleep, self._on_attempt, self._on_retry = sleep or self._stopped.wait, on_attempt, on_retry
        # Both keys, as a peer may have seen either.
        self.secrets = {settings.transfer_api_key, settings.event_api_key, *secrets}
        self._was_reached = False
        self.clock_difference: float | None = None  # seconds by which the service's clock is ahead, once it is known
        self._http = open_client(settings)

    # The transfer interface.

    def create_transfer(self, new: NewTransfer) -> Transfer:
        """POST /v1/transfers: create a draft (service-api.md, R22).

        :raises WrongTransfer: the response shows another transfer.
        """
        self.secrets.update(new.secrets)
        request = Request("create", "POST", "/v1/transfers", body=msgspec.json.encode(new))
        transfer = self.retry("create", lambda _: self._call(request, _decode_transfer), MAX_DRAFTS)
        if not transfer.is_draft or transfer.files or models.identity_of(transfer) != models.identity_of(new):
            shown = f"transfer {transfer.id} ({transfer.status})"
            raise errors.WrongTransfer(f"create: the response shows {shown}, which is not the requested draft")
        return transfer

    def get_transfer(self, transfer_id: str, decode: Callable[[bytes], Transfer] = decode_transfer) -> Transfer:
        """GET /v1/transfers/{transfer_id}: a draft or a sent transfer, with its files (service-api.md, R29).

        :param decode: or :func:`.decode_pickups`.
        """

        def check(response: Response) -> Transfer:
            transfer = decode(response.body)
            if transfer.id != transfer_id:
                raise MalformedResponse(f"get: the response shows a transfer other than {transfer_id}")
            if not transfer.is_draft and not transfer.sent_at:
                raise MalformedResponse(f"get: transfer {transfer_id} is {transfer.status!r}, but has no sent_at")
            return transfer

        return self._repeat(Request("get", "GET", _path(transfer_id)), check)

    def find_transfer(self, transfer_id: str, decode: Callable[[bytes], Transfer] = decode_transfer) -> Transfer | None:
        """Return a transfer; None if the key sees no transfer with this id, for example after a discard."""
        try:
            return self.get_transfer(transfer_id, decode)
        except NotFound:
            return None

    def list_transfers(
        self, *, status: str = "all", limit: int = MAX_PAGE_SIZE, cursor: str | None = None
    ) -> TransferPage:
        """GET /v1/transfers: one page of sent transfers, newest first (service-api.md, R26, R27)."""
        position = {} if cursor is None else {"cursor": cursor}
        request = Request("list", "GET", "/v1/transfers", params={"limit": limit, "status": status, **position})
        return self._repeat(request, lambda response: models.decode_page(response.body))

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
                request, lambda response: Attached(_decode_file(response), response.status == 201, is_doubtful)
            )

        return self.retry("attach", attempt)

    def list_files(self, transfer_id: str) -> tuple[File, ...]:
        """GET /v1/transfers/{transfer_id}/files: all files in one response (service-api.md, R34)."""
        request = Request("list_files", "GET", _path(transfer_id, "files"))
        return self._repeat(request, lambda response: msgspec.json.decode(response.body, type=_Files).data)

    def get_file(self, transfer_id: str, file_id: str) -> File:
        """GET /v1/transfers/{transfer_id}/files/{file_id}: the record of one file (service-api.md, R34)."""
        return self._repeat(Request("get_file", "GET", _path(transfer_id, "files", file_id)), _decode_file)

    def remove_file(self, transfer_id: str, file_id: str, before_attempt: Callable[[], object] = lambda: None) -> None:
        """DELETE /v1/transfers/{transfer_id}/files/{file_id}: remove a file from a draft, if it exists (R20, R34)."""
        with suppress(NotFound):
            self._delete("remove", _path(transfer_id, "files", file_id), before_attempt)

    def discard_transfer(self, transfer_id: str) -> None:
        """DELETE /v1/transfers/{transfer_id}: discard a draft (service-api.md, R35).

        :raises InvalidState: it was sent.
        :raises NotFound: the key sees no transfer with this id, for example because an earlier call discarded it.
        """
        self._delete("discard", _path(transfer_id), lambda: None)

    def _delete(self, operation: str, path: str, before_attempt: Callable[[], object]) -> None:
        def attempt(is_doubtful: bool) -> None:
            before_attempt()
            try:
                self._call(Request(operation, "DELETE", path), _require_deleted)
            except NotFound:
                if not is_doubtful:  # otherwise, an earlier attempt has been applied
                    raise

        self.retry(operation, attempt)

    def send_once(self, transfer_id: str) -> Transfer:
        """POST /v1/transfers/{transfer_id}/send, in one attempt: bills the account and emails the recipients (R36).

        The service sends a draft once: it responds 409 to a second send, and a read shows whether an earlier one was
        applied (R37). So :meth:`retry` around this repeats an attempt in doubt.

        :return: the transfer, which this attempt or an earlier one has sent.
        :raises InvalidState: it is a draft without files.
        :raises MalformedResponse: in doubt: the service shows a draft; after 409, one with files.
        :raises Rehearsed: the connection rehearses; no request was made.
        """
        self.check_sends()
        try:
            transfer = self._call(Request("send", "POST", _path(transfer_id, "send")), _decode_transfer)
        except InvalidState:
            try:
                transfer = self.get_transfer(transfer_id)
            except CallError as error:
                error.in_doubt = True  # an earlier attempt may have sent it
                raise
            if transfer.is_draft and not transfer.files:
                raise
        if transfer.is_draft or not transfer.sent_at:
            raise MalformedResponse(f"send: the service shows that {transfer_id} is {transfer.status!r}, not sent")
        return transfer

    def check_sends(self) -> None:
        """:raises Rehearsed: the connection rehearses: no send is requested."""
        if self.settings.rehearses:
            raise errors.Rehearsed("The connection rehearses: nothing is sent")

    # The event feed.

    def read_events(self, *, cursor: int = 0, limit: int = MAX_EVENTS_PER_PAGE) -> events.Page:
        """GET /v1/events: events after ``cursor``, oldest first; one page a minute and account (R40 to R44, R58)."""
        params = {"cursor": cursor, "limit": limit}
        request = Request("events", "GET", "/v1/events", params=params, is_feed=True, max_bytes=MAX_FEED_PAGE_BYTES)
        return self._repeat(request, lambda response: events.read_page(response.headers, response.body, cursor=cursor))

    def probe_feed(self) -> None:
        """Read the feed at an invalid cursor: 400 if the key is valid, else 401; does not use up the rate."""
        params = {"cursor": "none", "limit": "1"}
        self._repeat(Request("events", "GET", "/v1/events", params=params, is_feed=True), lambda _: None)

    def retry(self, operation: str, attempt: Callable[[bool], T], max_in_doubt: int | None = None) -> T:
        """Repeat an attempt, of one call or several, while its error is transient, within the policy.

        :param attempt: gets whether an earlier attempt ended in doubt.
        :param max_in_doubt: attempts that may end in doubt.
        :raises CallError: of the last attempt. A loop around this one does not repeat it.
        """
        failures = doubts = 0
        waited = {True: 0.0, False: 0.0}  # for a slot, and otherwise

        def is_over(state: RetryCallState) -> bool:
            nonlocal failures, doubts
            error, policy, max_failures = _error_of(state), self._policy, self._policy.max_attempts
            if isinstance(error, errors.NotConnected) and not self._was_reached:
                max_failures = min(MAX_FIRST_ATTEMPTS, max_failures)
            doubts += error.in_doubt
            failures += not (error.waits_for_slot or isinstance(error, RateLimited))
            waited[error.waits_for_slot] += state.upcoming_sleep
            error.is_exhausted = (
                failures >= max_failures
                or doubts == max_in_doubt
                or (error.retry_after or 0.0) > MAX_RETRY_AFTER
                or waited[False] > policy.timeout
                or waited[True] > policy.slot_timeout
            )
            return error.is_exhausted

        retrying = Retrying(
            retry=retry_if_exception(lambda e: isinstance(e, CallError) and e.is_transient and not e.is_exhausted),
            wait=lambda state: _delay_after(_error_of(state), failures),
            stop=is_over,
            sleep=self._wait,
            before_sleep=lambda state: self._on_retry(operation, _error_of(state), state.upcoming_sleep),
            reraise=True,
        )
        return retrying(lambda: attempt(doubts > 0))

    def _repeat(self, request: Request, decode: Callable[[Response], T]) -> T:
        return self.retry(request.operation, lambda _: self._call(request, decode))

    def _call(self, request: Request, decode: Callable[[Response], T]) -> T:
        response = transport.send(self._http, self.settings, request, self._on_attempt, self.secrets)
        self._was_reached = True
        if date := transport.parse_http_date(response.headers.get("date")):
            self.clock_difference = date.timestamp() - time.time()
        return transport.decode_response(request, response, decode, self.secrets)

    def _wait(self, seconds: float) -> None:
        self.sleep(seconds)
        self._check_not_stopped()

    def _body(self, upload: Upload) -> Iterator[bytes]:
        for chunk in upload.body():
            self._check_not_stopped()
            yield chunk

    def _check_not_stopped(self) -> None:
        if self._stopped.is_set():
            raise errors.CallsStopped

    def stop(self) -> None:
        """End other threads' calls by :class:`.CallsStopped`: uploads break off, and no call waits for a retry."""
        self._stopped.set()

    def close(self) -> None:
        self._http.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Files(msgspec.Struct):
    data: tuple[File, ...]


def _path(*parts: str) -> str:
    # Ids are opaque and may come from users, so each is quoted as a whole and cannot lead to another path.
    if not all(isinstance(part, str) and part.strip(".") and is_valid_unicode(part) for part in parts):
        raise errors.InvalidDelivery(f"not an id of the service: {parts!r}")
    return "/".join(("/v1/transfers", *(quote(part, safe="") for part in parts)))


def _decode_file(response: Response) -> File:
    return msgspec.json.decode(response.body, type=File)


def _require_deleted(response: Response) -> None:
    if response.status != 204:  # which alone proves that nobody can send the draft (R35)
        raise MalformedResponse(f"delete: status {response.status} instead of 204: a proxy or gateway responded")


def _decode_transfer(response: Response) -> Transfer:
    return decode_transfer(response.body)


def _error_of(state: RetryCallState) -> CallError:
    assert state.outcome
    return cast("CallError", state.outcome.exception())


def _delay_after(error: CallError, failures: int) -> float:
    """Return the seconds before the next attempt: the requested delay plus at most a second, or a backoff."""
    asked = error.retry_after
    if error.waits_for_slot:
        asked = max(SLOT_INTERVAL, asked or 0.0)
    elif isinstance(error, RateLimited) and asked is None:
        asked = RATE_LIMIT_DELAY
    if asked is None:
        return random.uniform(MIN_DELAY, min(MAX_BACKOFF, 2.0 ** (failures + 1)))  # noqa: S311
    return max(asked, MIN_DELAY) + random.random()  # noqa: S311
