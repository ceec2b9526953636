"""Calls that show whether a connection works: its keys, and the service's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from outbound_transfer.client import errors
from outbound_transfer.client.client import Client, RetryPolicy
from outbound_transfer.client.settings import Settings
from outbound_transfer.observability.findings import Finding, Health
from outbound_transfer.wording import format_duration

MAX_SECONDS: Final = 5.0  # limit for each step of a call and for its repeats, whatever the connection's timeout
MAX_CLOCK_DIFFERENCE: Final = 60.0  # seconds that are not reported


def check_service(settings: Settings) -> tuple[Finding, ...]:
    """Return the findings about the service, both keys and the clock, in this order.

    The event key is tested with a request that the service refuses, so that it does not use up the minute's call.
    """
    settings = replace(settings, timeout=min(settings.timeout, MAX_SECONDS))
    policy = RetryPolicy(max_attempts=2, timeout=MAX_SECONDS)
    with Client(settings, policy=policy, on_retry=lambda *_: None) as client:  # nothing is logged among the findings
        outcomes = [_error_of(lambda: client.list_transfers(limit=1))]
        # Ignored after an error: a proxy's page has a Date, too.
        difference = None if outcomes[0] else client.clock_difference
        event_key = Finding("event_key", Health.OK, "No event_api_key is set, so the feed cannot be read.")
        if settings.event_api_key:
            outcomes.append(_error_of(client.probe_feed))
            event_key = judge_key("event_key", outcomes[-1])
    service = judge_service(settings.origin, outcomes)
    return service, judge_key("transfer_key", outcomes[0]), event_key, judge_clock(difference)


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except (errors.CallError, errors.InvalidSettings) as error:
        return error
    return None


def summarize(findings: Sequence[Finding]) -> tuple[bool, str]:
    """Return what Airflow shows after a connection test: whether the connection works, and a message."""
    service, *keys, clock = findings
    broken = [each for each in findings if each.status is Health.BROKEN]
    if service.status is Health.DEGRADED:
        broken = [service]
    shown = broken or [*keys, *([clock] if clock.status is Health.DEGRADED else [])]
    return not broken, " ".join(map(str, shown))


def judge_service(address: str, outcomes: Sequence[Exception | None]) -> Finding:
    """Judge whether the service responds, by the errors of calls; None for a success."""
    calls = [each for each in outcomes if not isinstance(each, errors.InvalidSettings)]
    if not calls:
        return Finding("service", Health.UNKNOWN, "Not called, as no key can be used.", "See the keys.")
    if any(map(_has_responded, calls)):
        return Finding("service", Health.OK, f"{address} responds.")
    health = Health.DEGRADED if isinstance(calls[0], errors.ServerFault) else Health.BROKEN
    return Finding("service", health, str(calls[0]), "Check that the service is up and that this machine can reach it.")


def _has_responded(error: Exception | None) -> bool:
    return error is None or (isinstance(error, errors.ServiceError) and not isinstance(error, errors.ServerFault))


def judge_key(check: str, error: Exception | None) -> Finding:
    """Judge a key by the error of a call with it; the call with the event key has an invalid cursor."""
    is_of_feed = check == "event_key"
    # service-api.md, Unspecified: that the key is checked before the cursor and the rate is not promised.
    if error is None or (is_of_feed and isinstance(error, errors.InvalidRequest | errors.RateLimited)):
        return Finding(check, Health.OK, f"The {check.replace('_', ' ')} is accepted.")
    if isinstance(error, errors.InvalidSettings):
        return Finding(check, Health.BROKEN, str(error))  # which says what to correct
    if isinstance(error, errors.RateLimited):
        found = f"{error.status} {error.code}: this minute's calls are used up."
        to_do = "Use a pool to start fewer tasks at once, or give other systems their own keys."
        return Finding(check, Health.DEGRADED, found, to_do)
    if isinstance(error, errors.ServiceError) and _has_responded(error):
        newest = "Set event_api_key to the newest key, which has invalidated earlier ones."
        to_do = newest if is_of_feed and isinstance(error, errors.InvalidApiKey) else error.advice
        return Finding(check, Health.BROKEN, str(error).removesuffix(error.advice).rstrip(), to_do)
    return Finding(check, Health.UNKNOWN, f"Not tested: {error}", "See service.")


def judge_clock(ahead: float | None) -> Finding:
    """Judge this machine's clock, by the seconds that the service's is ahead of it; None if they are unknown."""
    if ahead is None:
        return Finding("clock", Health.UNKNOWN, "The service did not send its time.", "See service and transfer_key.")
    difference = format_duration(abs(ahead))
    if abs(ahead) <= MAX_CLOCK_DIFFERENCE:
        return Finding("clock", Health.OK, f"It differs from the service's by {difference}.")
    found = f"This machine's clock is {difference} {'behind' if ahead > 0 else 'ahead of'} the service's."
    return Finding("clock", Health.DEGRADED, found, "Synchronize it with a time server: deadlines depend on it.")
