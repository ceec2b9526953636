"""Calls that show whether a connection works: its keys, and the service's clock."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outbound_transfer.airflow_compat.names import BaseHook, mask_secret
from outbound_transfer.client.client import Client
from outbound_transfer.client.errors import CallError, InvalidSettings
from outbound_transfer.client.health import (
    Finding,
    Health,
    judge_clock,
    judge_event_key,
    judge_service,
    judge_transfer_key,
)
from outbound_transfer.client.retry import RetryPolicy
from outbound_transfer.hooks.connection import settings_from_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outbound_transfer.client.settings import Settings

T = TypeVar("T")

#: Seconds for each step of a call, whatever the connection's timeout is, and those within which a call is repeated.
MAX_STEP_SECONDS: Final = 5.0
MAX_RETRY_SECONDS: Final = 5.0


def read_settings(conn_id: str) -> Settings:
    """Read the connection, and let Airflow mask both of its keys.

    :raises AirflowNotFoundException: there is none of this id.
    :raises InvalidSettings: naming the field to correct.
    """
    settings = settings_from_connection(BaseHook.get_connection(conn_id))
    mask_secret(settings.event_api_key)
    return settings


def check_service(settings: Settings, *, clock: Callable[[], float] = time.time) -> tuple[Finding, ...]:
    """Return the findings about the service, both keys and the clock, in this order.

    Uses up one of the transfer key's calls of the minute, and not the feed's: its key is tested with a request that the
    service refuses.

    :param clock: returns this machine's time, in seconds since the epoch.
    """
    settings = replace(settings, timeout=min(settings.timeout, MAX_STEP_SECONDS))
    policy = RetryPolicy(max_attempts=2, timeout=MAX_RETRY_SECONDS)
    with Client(settings, policy=policy, on_retry=lambda *_: None) as client:  # nothing is logged among the findings
        timestamp, of_transfers = _attempt(client.probe_transfers)
        difference = clock() - timestamp.timestamp() if timestamp else None
        if not settings.event_api_key:
            outcomes = [of_transfers]
            event_key = Finding("event_key", Health.OK, "No event_api_key is set, so the feed cannot be read.")
        else:
            _, of_feed = _attempt(client.probe_feed)
            outcomes, event_key = [of_transfers, of_feed], judge_event_key(of_feed)
    service = judge_service(settings.origin, outcomes)
    return service, judge_transfer_key(of_transfers), event_key, judge_clock(difference)


def _attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return call(), None
    except (CallError, InvalidSettings) as error:
        return None, error


def summarize(findings: Sequence[Finding]) -> tuple[bool, str]:
    """Return what Airflow shows for a connection that is tested: whether it works, and why not or how."""
    service, *others = findings
    if service.status in (Health.BROKEN, Health.DEGRADED):
        return False, service.found
    broken = [each for each in others if each.status is Health.BROKEN]
    *keys, clock = others
    shown: list[Any] = broken or [*keys, *([clock] if clock.status is Health.DEGRADED else [])]
    return not broken, " ".join(map(str, shown))
