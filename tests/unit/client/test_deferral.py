"""A deferral forgets nothing: how long each unfinished call has waited, and what may still be applied."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.client import RetryPolicy
from outbound_transfer.client.allowance import ReservationDetails
from outbound_transfer.client.deferral import MAX_BLOCKING_WAIT, MAX_REPEATED_CALLS
from outbound_transfer.client.retry import RetryDetails
from outbound_transfer.protocol import endpoints, errors
from outbound_transfer.protocol.deferral import DeferRequested
from support.scripted_client import (
    BUSY,
    DRAFT,
    FULL,
    LIMITED,
    NO_CONTENT,
    NO_TRANSFERS,
    PENDING,
    ScriptedAllowance,
    ScriptedClient,
    response,
)

GET, SEND = endpoints.get_transfer("t"), endpoints.send_transfer("t")
LIST, DISCARD = endpoints.list_transfers(), endpoints.discard_transfer("t")
LIMITED_BRIEFLY = response(429, "3", error="rate_limited")


def defer(retry: RetryDetails) -> None:
    """The retry hook of a deferrable task."""
    if retry.wait_for > MAX_BLOCKING_WAIT and retry.is_server_directed:
        raise DeferRequested(retry.wait_for)


def client_of(*script: Any, **options: Any) -> ScriptedClient:
    return ScriptedClient(*script, on_retry=defer, **options)


def test_a_refused_call_carries_what_the_others_have_waited() -> None:
    with client_of(LIMITED, waited={"send": 120.0}) as client, pytest.raises(DeferRequested) as deferral:
        client.perform(GET)
    seconds = deferral.value.seconds
    assert seconds >= 30
    assert deferral.value.waited == {"send": 120.0 + seconds, "get": seconds}


def test_so_does_a_reserved_call_which_itself_has_not_waited() -> None:
    def defer_for(reservation: ReservationDetails) -> None:
        raise DeferRequested(reservation.delay - 5)

    allowance = ScriptedAllowance(30.0)
    with (
        ScriptedClient(allowance=allowance, on_reservation=defer_for, waited={"send": 120.0}) as client,
        pytest.raises(DeferRequested) as deferral,
    ):
        client.perform(GET)
    assert deferral.value.waited == {"send": 145.0}


def test_what_is_waited_in_the_worker_counts() -> None:
    with client_of(LIMITED_BRIEFLY, DRAFT, FULL, waited={"send": 120.0}) as client:
        client.perform(GET)
        with pytest.raises(DeferRequested) as deferral:
            client.perform(SEND)
        assert client.now >= 3
        assert deferral.value.waited == {"send": 120.0 + client.now + deferral.value.seconds}


@pytest.mark.parametrize("script", [[LIMITED], [LIMITED_BRIEFLY, FULL, LIMITED]], ids=["never made", "refused before"])
def test_a_hook_that_is_deferred_carries_what_its_call_has_waited(script) -> None:
    """Only from its first attempt on: before, no limit of it has begun."""
    *before, last = script
    was_refused = bool(before)
    hook_responses = [DRAFT, DRAFT, last] if was_refused else [last]
    merged = [each for pair in zip(hook_responses, before, strict=False) for each in pair] + [last]
    policy = RetryPolicy(slot_poll_interval=4.0)
    with client_of(*merged, policy=policy) as client, pytest.raises(DeferRequested) as deferral:
        client.perform(SEND, before_attempt=lambda: client.perform(GET))
    seconds = deferral.value.seconds
    expected = {"get": seconds} | ({"send": client.now + seconds} if was_refused else {})
    assert deferral.value.waited == pytest.approx(expected)


def test_the_time_that_a_hook_takes_before_the_first_attempt_is_none_of_its_call() -> None:
    seconds = iter([600])
    with ScriptedClient(FULL, PENDING, policy=RetryPolicy(slot_timeout=180)) as client:

        def hook() -> None:
            client.now += next(seconds, 0)

        assert client.perform(SEND, before_attempt=hook).status == "pending"


@pytest.mark.parametrize(
    ("script", "was_in_doubt"),
    [
        ([FULL], False),
        ([BUSY, DRAFT, FULL], True),
        ([BUSY, LIMITED], True),
        ([DRAFT, BUSY, DRAFT, LIMITED], True),
    ],
    ids=["refused", "read", "unread", "in its hook"],
)
def test_a_deferral_says_whether_its_call_may_be_applied(script, was_in_doubt) -> None:
    with client_of(*script) as client:
        hook = (lambda: client.perform(GET)) if script[0] is DRAFT else lambda: None
        with pytest.raises(DeferRequested) as deferral:
            client.perform(SEND, before_attempt=hook)
    assert deferral.value.was_in_doubt is was_in_doubt


def test_a_read_leaves_nothing_in_doubt() -> None:
    with client_of(errors.ConnectionLost(), LIMITED) as client, pytest.raises(DeferRequested) as deferral:
        client.perform(GET)
    assert not deferral.value.was_in_doubt


# ------------------------------------------------------------------------------------------- how long it is remembered


def is_refused_for_good(client: ScriptedClient, call: Any = GET) -> bool:
    """Whether the refusal of a call exceeds its timeout."""
    try:
        client.script = [LIMITED]
        client.perform(call)
    except DeferRequested:
        return False
    except errors.RateLimited:
        return True
    raise AssertionError


def test_time_that_was_waited_before_counts_until_something_is_changed() -> None:
    """Which of its reads was refused in an earlier process, a process does not know."""
    for operation, done, is_over in [
        (None, [], True),
        (GET, [DRAFT], True),
        (LIST, [NO_TRANSFERS], True),
        (DISCARD, [NO_CONTENT], False),
    ]:
        with client_of(*done, policy=RetryPolicy(timeout=100.0), waited={"get": 90.0}) as client:
            if operation:
                client.perform(operation)
            assert is_refused_for_good(client) is is_over


def test_time_that_was_waited_for_a_change_counts_until_it_is_made() -> None:
    policy = RetryPolicy(timeout=100.0)
    for done, response_to_it, is_over in [(GET, DRAFT, True), (SEND, PENDING, True), (DISCARD, NO_CONTENT, False)]:
        with client_of(response_to_it, policy=policy, waited={"discard": 90.0}) as client:
            client.perform(done)
            assert is_refused_for_good(client, DISCARD) is is_over


def test_a_task_whose_second_read_is_always_refused_is_not_deferred_without_end() -> None:
    waited: dict[str, float] = {}
    for _process in range(1_000):
        with client_of(DRAFT, LIMITED, policy=RetryPolicy(timeout=600.0), waited=waited) as client:
            client.perform(GET)
            try:
                client.perform(GET)
            except DeferRequested as request:
                waited = request.waited
            except errors.RateLimited:
                break
    else:
        raise AssertionError("it is deferred without end")
    assert 600 - 40 < waited["get"] <= 600


def test_a_task_that_only_reads_begins_a_new_count_once_it_waits_in_its_worker() -> None:
    with client_of(
        *[NO_TRANSFERS] * (MAX_REPEATED_CALLS + 1), policy=RetryPolicy(timeout=100.0), waited={"list": 90.0}
    ) as client:
        for _page in range(MAX_REPEATED_CALLS + 1):
            client.perform(LIST)
        assert not is_refused_for_good(client, LIST)
