"""A 429 is about the key: no call of the client is made before its Retry-After is over, whichever was refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.client.retry import MIN_RETRY_DELAY, RETRY_AFTER_JITTER, RetryDetails
from outbound_transfer.protocol import endpoints, errors
from outbound_transfer.protocol.deferral import DeferRequested
from outbound_transfer.protocol.messages import Call, Response
from support.scripted_client import DRAFT, LIMITED, NO_CONTENT, ScriptedClient, response

GET, REMOVE = endpoints.get_transfer("t"), endpoints.remove_file("t", "f")
PAGE = Response(200, {"content-type": "application/x-ndjson", "x-next-cursor": "0", "x-has-more": "false"}, b"")


class BusyClient(ScriptedClient):
    """A client that makes further calls while one of its calls waits, as other threads would.

    :ivar meanwhile: what is done in its sleeps, in turn.
    :ivar requests: operation and time of each request.
    """

    def __init__(self, *script: Any, meanwhile: list[Callable[[BusyClient], object]], **options: Any) -> None:
        super().__init__(*script, **options)
        self.meanwhile, self.requests = meanwhile, list[tuple[str, float]]()

    def _note_sleep(self, seconds: float) -> None:
        awake_at = self.now + seconds
        if self.meanwhile:
            self.meanwhile.pop(0)(self)
        self.now = max(self.now, awake_at)

    def _send(self, call: Call[Any]) -> Response:
        self.requests.append((call.operation.value, self.now))
        return super()._send(call)


def remove(client: BusyClient) -> None:
    client.perform(REMOVE)


def refuse(client: ScriptedClient, seconds: float = 100.0) -> None:
    """A call that was under way is refused."""
    client._record_refusal(errors.RateLimited(429, "rate_limited", retry_after=seconds))


def test_a_call_waits_for_the_retry_after_of_another() -> None:
    with BusyClient(LIMITED, NO_CONTENT, DRAFT, meanwhile=[remove]) as client:
        client.perform(GET)
    (first, _), (second, removed_at), (third, _) = client.requests
    assert (first, second, third) == ("get", "remove", "get")
    assert 30 <= removed_at <= 30 + RETRY_AFTER_JITTER


def test_a_repeat_waits_for_the_retry_after_of_another_too() -> None:
    """The delay of its own is over earlier."""
    with BusyClient(LIMITED, DRAFT, meanwhile=[refuse]) as client:
        client.perform(GET)
    assert [operation for operation, _ in client.requests] == ["get", "get"]
    assert client.requests[1][1] >= 100


def test_a_refusal_during_the_wait_lengthens_it() -> None:
    """While the read waits, a removal begins to wait; meanwhile a call that was under way is refused, too."""
    with BusyClient(LIMITED, NO_CONTENT, DRAFT, meanwhile=[remove, refuse]) as client:
        client.perform(GET)
    assert [operation for operation, _ in client.requests] == ["get", "remove", "get"]
    assert all(at >= 100 for _, at in client.requests[1:])


def test_the_last_of_several_refusals_counts() -> None:
    with ScriptedClient(NO_CONTENT) as client:
        for seconds in (30.0, 100.0, 7.0):
            refuse(client, seconds)
        client.perform(REMOVE)
        assert 100 <= client.now <= 100 + RETRY_AFTER_JITTER


def test_a_deferrable_task_is_deferred_for_it() -> None:
    """It is notified the cause, and nothing is sent; the call that was not made has not waited."""
    notified = list[RetryDetails]()

    def defer(retry: RetryDetails) -> None:
        notified.append(retry)
        if len(notified) == 2:
            raise DeferRequested(retry.wait_for)

    with BusyClient(LIMITED, DRAFT, meanwhile=[remove], on_retry=defer) as client:
        with pytest.raises(DeferRequested) as deferral:
            client.perform(GET)
        assert [operation for operation, _ in client.requests] == ["get"]
    assert notified[1].call is REMOVE
    assert notified[1].caused_by is notified[0].caused_by
    assert notified[1].is_server_directed
    assert deferral.value.seconds >= 30
    assert "remove" not in deferral.value.waited


def test_the_calls_that_waited_start_apart_and_once() -> None:
    """Also if the clock stands still: nothing waits twice for one refusal."""
    sleeps = list[float]()
    with ScriptedClient(*[NO_CONTENT] * 20) as client:
        refuse(client, 30.0)
        client._sleep = sleeps.append
        for _ in range(20):
            client.perform(REMOVE)
    assert len(set(sleeps)) == 20
    assert all(30 <= seconds <= 30 + RETRY_AFTER_JITTER for seconds in sleeps)
    assert max(sleeps) - min(sleeps) > RETRY_AFTER_JITTER / 4


def test_a_call_alone_waits_once_for_its_own_refusal() -> None:
    retries = list[RetryDetails]()
    zero = response(429, "0", error="rate_limited")
    with ScriptedClient(LIMITED, zero, DRAFT, on_retry=retries.append) as client:
        client.perform(GET)
    assert client.log == ["get", "sleep", "get", "sleep", "get"]
    assert len(retries) == 2
    assert retries[1].wait_for >= MIN_RETRY_DELAY


@pytest.mark.parametrize(
    ("refused", "other"),
    [(endpoints.read_events(), GET), (GET, endpoints.read_events())],
    ids=["feed first", "transfers first"],
)
def test_the_feed_has_a_limit_of_its_own(refused, other) -> None:
    pages = {"events": PAGE, "get": DRAFT}
    made_at = list[float]()

    def make_other(client: BusyClient) -> None:
        client.perform(other)
        made_at.append(client.now)

    script = [LIMITED, pages[other.operation.value], pages[refused.operation.value]]
    with BusyClient(*script, meanwhile=[make_other]) as client:
        client.perform(refused)
    assert made_at == [0.0]
