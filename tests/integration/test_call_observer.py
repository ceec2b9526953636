"""An observer of a client hears of every attempt and every delay between two."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.client import AsyncClient, CallAttempt, Client, Observer, RetryPolicy, Settings
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import CallError, RateLimited


class Ear(Observer):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int | None]] = []
        self.waited: list[type[BaseException]] = []

    def on_attempt(self, attempt: CallAttempt) -> None:
        assert attempt.seconds > 0
        self.heard.append((attempt.call.operation.value, attempt.status))

    def on_retry(self, retry: Any) -> None:
        self.waited.append(type(retry.caused_by))


class Broken(Observer):
    def on_attempt(self, attempt: CallAttempt) -> None:
        raise OSError

    on_retry = on_attempt  # type: ignore[assignment]


FAULTS = [{"kind": "error", "status": 429, "retry_after": "1"}, {"kind": "reset"}]


HEARD = [("list", 429), ("list", None), ("list", 200)]


def test_an_observer_is_told_of_every_try_and_wait(sandbox) -> None:
    ear = Ear()
    sandbox.plan_faults(*FAULTS)
    with Client(_settings(sandbox), observer=ear, sleep=lambda _: None, on_retry=lambda _: None) as client:
        client.perform(endpoints.list_transfers(limit=1))
    assert ear.heard == HEARD
    assert ear.waited[0] is RateLimited
    assert len(ear.waited) == 2


async def test_the_async_client_tells_the_same(sandbox) -> None:
    ear = Ear()
    sandbox.plan_faults(*FAULTS)

    async def sleep(_: float) -> None: ...

    async with AsyncClient(_settings(sandbox), observer=ear, sleep=sleep, on_retry=lambda _: None) as client:
        await client.perform(endpoints.list_transfers(limit=1))
    assert ear.heard == HEARD


def test_an_observer_that_fails_breaks_no_call(sandbox) -> None:
    sandbox.plan_faults(*FAULTS)
    with Client(_settings(sandbox), observer=Broken(), sleep=lambda _: None, on_retry=lambda _: None) as client:
        assert client.perform(endpoints.list_transfers(limit=1)).data == ()


def test_a_wait_is_told_even_where_it_is_spent_elsewhere(sandbox) -> None:
    """A deferral raises out of ``on_retry``."""

    class Elsewhere(Exception):
        pass

    def elsewhere(_: Any) -> None:
        raise Elsewhere

    ear = Ear()
    sandbox.plan_faults(FAULTS[0])
    with (
        Client(_settings(sandbox), observer=ear, on_retry=elsewhere, policy=RetryPolicy()) as client,
        pytest.raises(Elsewhere),
    ):
        client.perform(endpoints.list_transfers(limit=1))
    assert ear.waited == [RateLimited]


def test_an_observer_hears_of_a_service_that_is_not_there() -> None:
    ear = Ear()
    policy = RetryPolicy(max_attempts=1)
    with Client(Settings("http://127.0.0.1:1/", "k"), observer=ear, policy=policy) as client, pytest.raises(CallError):
        client.perform(endpoints.list_transfers(limit=1))
    assert ear.heard == [("list", None)]


def _settings(sandbox: Any) -> Settings:
    return Settings(f"{sandbox.base_url}/", sandbox.transfer_api_key)
