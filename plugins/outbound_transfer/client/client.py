"""The client of one account: calls under the retry policy, flows over calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying

from outbound_transfer.client.drive import drive, drive_async
from outbound_transfer.client.retry import RetryPolicy
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.transport import client_options, exchange, exchange_async
from outbound_transfer.protocol.exchange import Answer, Call, Flow
from outbound_transfer.protocol.flows import Tries

T = TypeVar("T")


class Client:
    """For workers. Use as a context manager, or :meth:`close` it.

    :param sleep: waits so many seconds between two tries; may raise to wait elsewhere (a deferral).
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.policy, self._sleep, self._clock = settings, policy or RetryPolicy(), sleep, clock
        self._http = httpx.Client(**client_options(settings))

    def perform(self, call: Call[T]) -> T:
        """One call, repeated as the policy allows.

        :raises CallError: the last try's error.
        """
        tries = Tries(call)
        retrying = Retrying(sleep=self._sleep, **self.policy.options(call, self._clock))
        return retrying(lambda: drive(tries(), self._exchange))

    def run(self, flow: Flow[T]) -> T:
        """A conversation, each of its calls under the policy."""
        return drive(flow, self.perform)

    def _exchange(self, call: Call[Any]) -> Answer:
        return exchange(self._http, self.settings, call)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """For the triggerer: the same over ``httpx.AsyncClient``."""

    def __init__(
        self,
        settings: Settings,
        *,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.policy, self._sleep, self._clock = settings, policy or RetryPolicy(), sleep, clock
        self._http = httpx.AsyncClient(**client_options(settings))

    async def perform(self, call: Call[T]) -> T:
        """One call, repeated as the policy allows.

        :raises CallError: the last try's error.
        """
        tries = Tries(call)
        retrying = AsyncRetrying(sleep=self._sleep, **self.policy.options(call, self._clock))
        return await retrying(lambda: drive_async(tries(), self._exchange))

    async def run(self, flow: Flow[T]) -> T:
        """A conversation, each of its calls under the policy."""
        return await drive_async(flow, self.perform)

    async def _exchange(self, call: Call[Any]) -> Answer:
        return await exchange_async(self._http, self.settings, call)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
