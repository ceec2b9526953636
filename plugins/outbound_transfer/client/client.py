"""The clients of one account: each call runs under the retry policy, and a flow runs as a series of calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying

from outbound_transfer.client.allowance import Allowance, ReservationDetails, ReservationHook, log_reservation
from outbound_transfer.client.checks import Checks
from outbound_transfer.client.deferral import CallProgress
from outbound_transfer.client.drivers import drive, drive_async
from outbound_transfer.client.observer import Observer, notify, observe_attempt
from outbound_transfer.client.retry import CallRetries, RetryDetails, RetryHook, RetryPolicy, log_retry
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.transport import client_options, send, send_async
from outbound_transfer.protocol.deferral import CallsStopped, DeferRequested
from outbound_transfer.protocol.errors import CallError, NotConnected, RateLimited, Rehearsed
from outbound_transfer.protocol.flows import SafeCall
from outbound_transfer.protocol.messages import Api, Call, Flow, Operation, Response, Upload

T = TypeVar("T")


class _AttemptPrevented(Exception):
    """Carries the error of a hook past the retries and flows, which handle errors of the call itself."""

    def __init__(self, error: CallError) -> None:
        super().__init__()
        self.error = error


def _unwrap(perform: Callable[[], T]) -> T:
    try:
        return perform()
    except _AttemptPrevented as prevented:
        error = prevented.error
    raise error  # not within the block above, so that its context stays as it is


class _BaseClient:
    """State and options that both clients share."""

    def __init__(
        self,
        settings: Settings,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_retry: RetryHook = log_retry,
        waited: Mapping[str, float] | None = None,
        allowance: Allowance | None = None,
        on_reservation: ReservationHook = log_reservation,
        reserved_delays: Iterable[float] = (),
        observer: Observer | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        """Set up the client; no connection is made yet.

        :param settings: address and keys of the account.
        :param policy: limits of retries; :class:`RetryPolicy` with its defaults if omitted.
        :param clock: returns monotonic seconds.
        :param on_retry: called before each retry delay; may raise, for example :class:`~.deferral.DeferRequested`.
        :param waited: seconds that calls have waited in an earlier process, by the value of their operation. They
            count for each call of the operation until one has made progress.
        :param allowance: the key's calls, which other processes use too; None if they are not shared.
        :param on_reservation: called before a call waits for its reserved time; may raise.
        :param reserved_delays: seconds until the first calls are to be made, which are reserved already.
        :param observer: notified of every attempt and every retry.
        :param secrets: texts that no error may quote, besides the keys and the secrets of the call itself.
        """
        self.settings, self.policy = settings, policy or RetryPolicy()
        self._clock, self._on_retry = clock, on_retry
        self._progress = CallProgress(waited or {}, clock)
        self._allowance, self._on_reservation = allowance, on_reservation
        self._reserved_times = deque(sorted(clock() + delay for delay in reserved_delays))
        self._was_reached = any((waited or {}).values())  # it was, in an earlier process
        self._observer = observer or Observer()
        self._secrets = tuple(secrets)

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Let no error of the calls from now on quote these texts either."""
        self._secrets += tuple(secrets)

    def _check_may_send(self, call: Call[Any]) -> None:
        """:raises Rehearsed: the call is a send, and the connection rehearses."""
        if self.settings.rehearses and call.operation is Operation.SEND:
            raise Rehearsed("The connection rehearses: nothing is sent")

    def _retries(self, call: Call[Any]) -> CallRetries:
        return CallRetries(
            self.policy,
            call,
            clock=self._clock,
            on_retry=self._before_retry,
            began=self._progress.began(call.operation),
            was_reached=lambda: self._was_reached,
        )

    def _record_success(self, call: Call[Any]) -> None:
        self._was_reached = True
        self._progress.record_success(call)

    def _before_retry(self, retry: RetryDetails) -> None:
        notify(self._observer.on_retry, retry)  # first, because the hook may raise
        self._was_reached |= not isinstance(retry.caused_by, NotConnected)
        allowance = self._allowance if retry.call.api is Api.TRANSFER else None
        if allowance and isinstance(retry.caused_by, RateLimited):
            allowance.record_refusal(retry.caused_by.retry_after or 0.0)
        self._on_retry(replace(retry, repeats=self._progress.repeats))
        if allowance:
            allowance.record_repeat()

    def _reserve(self, call: Call[Any]) -> float:
        """Reserve the first attempt of a call; return the seconds until then."""
        if self._allowance is None or call.api is Api.FEED:
            return 0.0
        on_reservation: ReservationHook = log_reservation  # a time that is reserved already is near: wait here
        try:  # one step, as several threads may reserve
            delay = self._reserved_times.popleft() - self._clock()
        except IndexError:
            delay, on_reservation = self._reserve_in(self._allowance), self._on_reservation
        if delay > 0:
            reserve_repeats = partial(self._reserve_repeats, self._allowance)
            on_reservation(ReservationDetails(call, delay, self._progress.repeats, reserve_repeats))
        return max(delay, 0.0)

    def _reserve_in(self, allowance: Allowance) -> float:
        delay = allowance.reserve()
        notify(self._observer.on_reservation, delay)
        return delay

    def _reserve_repeats(self, allowance: Allowance) -> list[float]:
        return [self._reserve_in(allowance) for _ in range(self._progress.take_repeats())]


class Client(_BaseClient):
    """Synchronous client, for workers. Use it as a context manager, or call :meth:`close`.

    Several threads may use it. Its retry hook and its observer are then called by each of them.
    """

    def __init__(self, settings: Settings, *, sleep: Callable[[float], object] | None = None, **options: Any) -> None:
        super().__init__(settings, **options)
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._checks = Checks(self._clock)
        self._http = httpx.Client(**client_options(settings))

    def perform(self, call: Call[T] | SafeCall[T], *, before_attempt: Callable[[], object] | None = None) -> T:
        """Perform a call, and repeat it as the policy allows.

        :param call: a :class:`.SafeCall` tells its owner, also after an interrupt, whether the call may be applied.
        :param before_attempt: called before each attempt, after everything that the attempt waits for and right before
            its request. May perform calls itself, and is called again if they had to wait. What it raises ends the
            call, and is raised as it is.
        :return: the decoded response.
        :raises CallError: the error of the last attempt.
        :raises Rehearsed: instead of a send, if the connection rehearses.
        """
        return _unwrap(lambda: self._perform(call, before_attempt))

    def run(self, flow: Flow[T], *, before_attempt: Callable[[], object] | None = None) -> T:
        """Run a flow; each of its calls is performed under the policy.

        :param before_attempt: see :meth:`perform`. What it raises ends the flow, which cannot handle it.
        """
        return _unwrap(lambda: drive(flow, lambda call: self._perform(call, before_attempt)))

    def _perform(self, call: Call[T] | SafeCall[T], before_attempt: Callable[[], object] | None) -> T:
        safe_call = call if isinstance(call, SafeCall) else SafeCall(call)
        call = safe_call.call
        self.settings.key(call.api)  # a key that is missing fails here, where nothing is in doubt
        retries, before_request = self._retries(call), partial(self._before_request, call, before_attempt)

        def send(request: Call[Any]) -> Response:
            retries.begin()
            self._checks.record_request()
            return self._send(request)

        try:
            if delay := self._reserve(call):
                self._wait(delay)
            retrying = Retrying(sleep=self._wait, **retries.options)
            result: T = retrying(lambda: drive(safe_call(before_request), send))
        except DeferRequested as request:
            self._progress.add_waited(request, call, retries.began)
            if call.method != "GET":  # a read leaves nothing in doubt
                request.was_in_doubt |= safe_call.was_in_doubt
            raise
        except Exception:
            self._progress.record_repeat()
            raise
        self._record_success(call)
        self._checks.record_response()
        return result

    def _before_request(self, call: Call[Any], before_attempt: Callable[[], object] | None) -> None:
        if before_attempt:
            try:
                with self._progress.pending():
                    self._checks.run(before_attempt, self._reserve_checks)
            except CallError as error:
                raise _AttemptPrevented(error) from None
        self._check_may_send(call)

    def _reserve_checks(self, calls: int) -> None:
        if self._allowance:
            self._reserved_times += [self._clock() + self._reserve_in(self._allowance) for _ in range(calls)]

    def stop(self) -> None:
        """Make the calls of other threads end soon, for good: uploads break off, and no call waits for a retry.

        They raise :class:`CallsStopped`. A request that is sent to its last byte is not broken off.
        """
        self._stopped.set()

    def _send(self, call: Call[Any]) -> Response:
        if upload := call.upload:
            call = replace(call, upload=replace(upload, chunks=lambda: self._until_stopped(upload)))
        with observe_attempt(self._observer, call, self.settings.account) as attempt:
            response = send(self._http, self.settings, call, self._secrets)
            attempt.status = response.status
        return response

    def _until_stopped(self, upload: Upload) -> Iterator[bytes]:
        for chunk in upload.chunks():
            self._check_not_stopped()
            yield chunk

    def _wait(self, seconds: float) -> None:
        self._sleep(seconds)
        self._check_not_stopped()

    def _check_not_stopped(self) -> None:
        if self._stopped.is_set():
            raise CallsStopped

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_BaseClient):
    """Asynchronous client, for the triggerer; the counterpart of :class:`Client`, but that it uploads nothing."""

    def __init__(
        self, settings: Settings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, **options: Any
    ) -> None:
        super().__init__(settings, **options)
        self._sleep = sleep
        self._http = httpx.AsyncClient(**client_options(settings))

    async def perform(self, call: Call[T]) -> T:
        """Perform a call, and repeat it as the policy allows.

        :return: the decoded response.
        :raises CallError: the error of the last attempt.
        :raises Rehearsed: instead of a send, if the connection rehearses.
        """
        if self._allowance and (delay := await asyncio.to_thread(self._reserve, call)):
            await self._sleep(delay)
        safe_call = SafeCall(call)
        retries = self._retries(call)
        retries.begin()

        async def attempt() -> T:
            return await drive_async(safe_call(partial(self._check_may_send, call)), self._send)

        result: T = await AsyncRetrying(sleep=self._sleep, **retries.options)(attempt)
        self._record_success(call)
        return result

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow; each of its calls is performed under the policy."""
        return await drive_async(flow, self.perform)

    async def _send(self, call: Call[Any]) -> Response:
        with observe_attempt(self._observer, call, self.settings.account) as attempt:
            response = await send_async(self._http, self.settings, call, self._secrets)
            attempt.status = response.status
        return response

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
