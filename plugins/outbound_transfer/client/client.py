"""The client of one account: calls under the retry policy, flows over calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying

from outbound_transfer.client.drive import drive, drive_async
from outbound_transfer.client.observer import Observer, observed, tell
from outbound_transfer.client.retry import OnWait, RetryPolicy, Wait, log_wait
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.transport import client_options, exchange, exchange_async
from outbound_transfer.protocol.exchange import Answer, Call, Flow
from outbound_transfer.protocol.flows import Tries

T = TypeVar("T")


class _Base:
    """What both clients keep."""

    def __init__(
        self,
        settings: Settings,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_wait: OnWait = log_wait,
        waited: Mapping[str, float] | None = None,
        observer: Observer | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        """
        :param clock: monotonic seconds.
        :param on_wait: told of every wait before it begins; may raise to wait elsewhere (a deferral).
        :param waited: seconds that a call, by its operation, has waited before this client was made.
        :param observer: told of every try of a call, and of every wait.
        :param secrets: what no error of any call may quote, beside the keys and what the call itself carries.
        """
        self.settings, self.policy = settings, policy or RetryPolicy()
        self._clock, self._on_wait, self._waited = clock, on_wait, dict(waited or {})
        self._observer = observer or Observer()
        self._secrets = tuple(secrets)

    def _retry_options(self, call: Call[T]) -> dict[str, Any]:
        waited = self._waited.pop(call.operation.value, 0.0)
        return self.policy.options(call, self._clock, self._announce, waited)

    def _announce(self, wait: Wait) -> None:
        tell(self._observer.waits, wait)  # first: the other may raise, to wait elsewhere
        self._on_wait(wait)


class Client(_Base):
    """For workers. Use as a context manager, or :meth:`close` it."""

    def __init__(self, settings: Settings, *, sleep: Callable[[float], None] = time.sleep, **options: Any) -> None:
        super().__init__(settings, **options)
        self._sleep = sleep
        self._http = httpx.Client(**client_options(settings))

    def perform(self, call: Call[T]) -> T:
        """One call, repeated as the policy allows.

        :raises CallError: the last try's error.
        """
        tries = Tries(call)
        retrying = Retrying(sleep=self._sleep, **self._retry_options(call))
        return retrying(lambda: drive(tries(), self._exchange))

    def run(self, flow: Flow[T]) -> T:
        """A conversation, each of its calls under the policy."""
        return drive(flow, self.perform)

    def _exchange(self, call: Call[Any]) -> Answer:
        with observed(self._observer, call) as asked:
            answer = exchange(self._http, self.settings, call, self._secrets)
            asked.status = answer.status
        return answer

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Base):
    """For the triggerer: the same over ``httpx.AsyncClient``."""

    def __init__(
        self, settings: Settings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, **options: Any
    ) -> None:
        super().__init__(settings, **options)
        self._sleep = sleep
        self._http = httpx.AsyncClient(**client_options(settings))

    async def perform(self, call: Call[T]) -> T:
        """One call, repeated as the policy allows.

        :raises CallError: the last try's error.
        """
        tries = Tries(call)
        retrying = AsyncRetrying(sleep=self._sleep, **self._retry_options(call))

        async def once() -> T:
            return await drive_async(tries(), self._exchange)

        return await retrying(once)

    async def run(self, flow: Flow[T]) -> T:
        """A conversation, each of its calls under the policy."""
        return await drive_async(flow, self.perform)

    async def _exchange(self, call: Call[Any]) -> Answer:
        with observed(self._observer, call) as asked:
            answer = await exchange_async(self._http, self.settings, call, self._secrets)
            asked.status = answer.status
        return answer

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
