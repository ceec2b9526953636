"""The clients of one account: each call runs under the retry policy, and a flow runs as a series of calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying

from outbound_transfer.client.allowance import Allowance, ReservationDetails, ReservationHook, log_reservation
from outbound_transfer.client.drivers import drive, drive_async
from outbound_transfer.client.observer import Observer, notify, observe_attempt
from outbound_transfer.client.retry import RetryDetails, RetryHook, RetryPolicy, log_retry
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.transport import client_options, send, send_async
from outbound_transfer.protocol.errors import NotConnected, RateLimited
from outbound_transfer.protocol.flows import SafeCall
from outbound_transfer.protocol.messages import Api, Call, Flow, Response, Upload

T = TypeVar("T")


class CallsStopped(Exception):
    """Control flow, not an error: another thread has stopped the calls of the client."""


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
        :param waited: seconds that the first call of an operation has already waited, by the operation's value.
        :param allowance: the key's calls, which other processes use too; None if they are not shared.
        :param on_reservation: called before a call waits for its reserved time; may raise.
        :param reserved_delays: seconds until the first calls are to be made, which are reserved already.
        :param observer: notified of every attempt and every retry.
        :param secrets: texts that no error or log may quote, besides the keys and the secrets of the call itself.
        """
        self.settings, self.policy = settings, policy or RetryPolicy()
        self._clock, self._on_retry, self._waited = clock, on_retry, dict(waited or {})
        self._allowance, self._on_reservation = allowance, on_reservation
        self._reserved_times = deque(sorted(clock() + delay for delay in reserved_delays))
        self._has_progressed = False
        self._was_reached = any(self._waited.values())  # it was, in an earlier process
        self._observer = observer or Observer()
        self._secrets = tuple(secrets)

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Let no error or log of the calls from now on quote these texts either."""
        self._secrets += tuple(secrets)

    def _retry_options(self, call: Call[T]) -> dict[str, Any]:
        waited = self._waited.pop(call.operation.value, 0.0)
        return self.policy.options(call, self._clock, self._before_retry, waited, lambda: self._was_reached)

    def _before_retry(self, retry: RetryDetails) -> None:
        notify(self._observer.on_retry, retry)  # first, because the hook may raise
        self._was_reached |= not isinstance(retry.caused_by, NotConnected)
        allowance = self._allowance if retry.call.api is Api.TRANSFER else None
        if allowance and isinstance(retry.caused_by, RateLimited):
            allowance.record_refusal(retry.caused_by.retry_after or 0.0)
        self._on_retry(retry)
        if allowance:
            allowance.record_repeat()

    def _reserve(self, call: Call[Any]) -> float:
        """Reserve the first attempt of a call; return the seconds until then."""
        if self._allowance is None or call.api is Api.FEED:
            return 0.0
        try:  # one step, as several threads may reserve
            delay = self._reserved_times.popleft() - self._clock()
        except IndexError:
            delay = self._allowance.reserve()
            notify(self._observer.on_reservation, delay)
        if delay > 0:
            self._on_reservation(ReservationDetails(call, delay, dict(self._waited), self._has_progressed))
        return max(delay, 0.0)


class Client(_BaseClient):
    """Synchronous client, for workers. Use it as a context manager, or call :meth:`close`.

    Several threads may use it. Its retry hook and its observer are then called by each of them.
    """

    def __init__(self, settings: Settings, *, sleep: Callable[[float], object] | None = None, **options: Any) -> None:
        super().__init__(settings, **options)
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._http = httpx.Client(**client_options(settings))

    def perform(self, call: Call[T]) -> T:
        """Perform a call, and repeat it as the policy allows.

        :return: the decoded response.
        :raises CallError: the error of the last attempt.
        """
        if delay := self._reserve(call):
            self._wait(delay)
        safe_call = SafeCall(call)
        retrying = Retrying(sleep=self._wait, **self._retry_options(call))
        result: T = retrying(lambda: drive(safe_call(), self._send))
        self._was_reached = True
        self._has_progressed |= call.method != "GET"
        return result

    def run(self, flow: Flow[T]) -> T:
        """Run a flow; each of its calls is performed under the policy."""
        return drive(flow, self.perform)

    def stop(self) -> None:
        """Make the calls of other threads end soon, for good: uploads break off, and no call waits for a retry.

        They raise :class:`CallsStopped`. A request that is sent to its last byte is not broken off.
        """
        self._stopped.set()

    def _send(self, call: Call[Any]) -> Response:
        if upload := call.upload:
            call = replace(call, upload=replace(upload, chunks=lambda: self._until_stopped(upload)))
        with observe_attempt(self._observer, call) as attempt:
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
    """Asynchronous client, for the triggerer; the counterpart of :class:`Client`."""

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
        """
        if self._allowance and (delay := await asyncio.to_thread(self._reserve, call)):
            await self._sleep(delay)
        safe_call = SafeCall(call)
        retrying = AsyncRetrying(sleep=self._sleep, **self._retry_options(call))

        async def attempt() -> T:
            return await drive_async(safe_call(), self._send)

        result: T = await retrying(attempt)
        self._was_reached = True
        return result

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow; each of its calls is performed under the policy."""
        return await drive_async(flow, self.perform)

    async def _send(self, call: Call[Any]) -> Response:
        with observe_attempt(self._observer, call) as attempt:
            response = await send_async(self._http, self.settings, call, self._secrets)
            attempt.status = response.status
        return response

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
