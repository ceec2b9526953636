"""What a check of the set-up finds: a finding for each of its parts, made from what others have observed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from outbound_transfer.client.errors import (
    InvalidApiKey,
    InvalidRequest,
    InvalidSettings,
    RateLimited,
    ServerFault,
    ServiceError,
)
from outbound_transfer.client.wording import format_duration

#: Seconds by which the clocks of the service and of Airflow may differ before an earlier send can be overlooked.
CLOCK_MARGIN: Final = 3_600.0

#: Seconds of difference that are not worth a word: a response takes some, and its Date has no parts of a second.
MAX_CLOCK_DIFFERENCE: Final = 60.0

#: Seconds after which a feed that is not read is behind. The service recommends a poll every 90 seconds.
MAX_FEED_LAG: Final = 600.0


class Health(Enum):
    """The state of a part; ``unknown`` if it could not be observed."""

    OK = "ok"
    DEGRADED = "degraded"
    BROKEN = "broken"
    UNKNOWN = "unknown"


#: Exit status of the command by the worst finding. What is unknown is not well.
_EXIT_STATUSES: Final = {Health.OK: 0, Health.DEGRADED: 1, Health.UNKNOWN: 1, Health.BROKEN: 2}


class Finding(msgspec.Struct, frozen=True):
    """What was found out about one part of the set-up.

    :ivar check: the part.
    :ivar found: what was observed, without secrets.
    :ivar to_do: what to do about it; "" if nothing is to be done.
    """

    check: str
    status: Health
    found: str
    to_do: str = ""

    def __str__(self) -> str:
        return f"{self.found} {self.to_do}".rstrip()


def exit_status(findings: Iterable[Finding]) -> int:
    """Return 0 if all is well, 1 if a part is degraded or unknown, 2 if one is broken."""
    return max((_EXIT_STATUSES[each.status] for each in findings), default=0)


def judge_service(address: str, outcomes: Iterable[Exception | None]) -> Finding:
    """Judge whether the service responds.

    :param outcomes: of each call, its error, or None.
    """
    calls = [each for each in outcomes if not isinstance(each, InvalidSettings)]
    if any(map(_is_response, calls)):
        return Finding("service", Health.OK, f"{address} responds.")
    if not calls:
        return Finding("service", Health.UNKNOWN, "Not called, as no key can be used.", "See the keys.")
    health = Health.DEGRADED if isinstance(calls[0], ServerFault) else Health.BROKEN
    return Finding("service", health, str(calls[0]), "See that the service is up, and that this machine reaches it.")


def _is_response(error: Exception | None) -> bool:
    """Return whether the service has responded, and not only said that it cannot."""
    return error is None or (isinstance(error, ServiceError) and not isinstance(error, ServerFault))


def judge_transfer_key(error: Exception | None) -> Finding:
    """Judge the transfer key by the error of a call with it."""
    if isinstance(error, RateLimited):
        return Finding(
            "transfer_key",
            Health.DEGRADED,
            f"{error.status} {error.code}: the calls of this minute are used up.",
            "Start fewer tasks at once, by a pool, or give other systems keys of their own.",
        )
    return _judge_key("transfer_key", "The transfer key is accepted.", error)


def judge_event_key(error: Exception | None) -> Finding:
    """Judge the event key by the error of a call with an invalid cursor, which uses up nothing."""
    # service-api.md, Unspecified: that the key is checked before the cursor and the rate is not promised.
    if isinstance(error, InvalidRequest | RateLimited):
        error = None
    finding = _judge_key("event_key", "The event key is accepted.", error)
    if isinstance(error, InvalidApiKey):
        return msgspec.structs.replace(finding, to_do="Set event_api_key to the newest one: it has ended those before.")
    return finding


def _judge_key(check: str, accepted: str, error: Exception | None) -> Finding:
    if error is None:
        return Finding(check, Health.OK, accepted)
    if isinstance(error, InvalidSettings):
        return Finding(check, Health.BROKEN, str(error))  # which says what to correct
    if isinstance(error, ServiceError) and _is_response(error):
        return Finding(check, Health.BROKEN, str(error).removesuffix(error.advice).rstrip(), error.advice)
    return Finding(check, Health.UNKNOWN, f"Not tested: {error}", "See service.")


def judge_clock(difference: float | None) -> Finding:
    """Judge this machine's clock.

    :param difference: seconds by which it is ahead of the service's; None if the service does not say its time.
    """
    if difference is None:
        return Finding("clock", Health.UNKNOWN, "The service has not said its time.", "See service and transfer_key.")
    if abs(difference) <= MAX_CLOCK_DIFFERENCE:
        return Finding("clock", Health.OK, f"It differs from the service's by {format_duration(abs(difference))}.")
    side = "ahead of" if difference > 0 else "behind"
    found = f"This machine's clock is {format_duration(abs(difference))} {side} the service's."
    if abs(difference) < CLOCK_MARGIN:
        return Finding("clock", Health.DEGRADED, found, "Set it by a time server: deadlines go by it.")
    return Finding("clock", Health.BROKEN, found, "Set it by a time server: an earlier send may be overlooked.")


def is_behind(lag: float | None, *, has_more: bool) -> bool:
    """Return whether an event feed is behind.

    :param lag: seconds since a page of it was loaded; None if that is unknown.
    :param has_more: whether that page had more after it.
    """
    return has_more or lag is None or lag > MAX_FEED_LAG


def judge_feed(cursor: int, lag: float | None, status: int | None, *, has_more: bool, logs_polls: bool) -> Finding:
    """Judge an event feed where it is loaded.

    :param lag: see :func:`is_behind`.
    :param status: HTTP status of the last poll; None if there was no response.
    :param logs_polls: whether a poll without events is recorded, and the last poll's status.
    """
    age = "at an unknown time" if lag is None else f"{format_duration(lag)} ago"
    found = f"The cursor is {cursor}, of a page that was loaded {age}{'; the feed has more' if has_more else ''}."
    to_do = "See the runs of the ingestion."
    if logs_polls and status != 200:
        return Finding("feed", Health.DEGRADED, f"{found} The last poll got {status or 'no response'}.", to_do)
    if not is_behind(lag, has_more=has_more):
        return Finding("feed", Health.OK, found)
    return Finding("feed", Health.DEGRADED if logs_polls or has_more else Health.UNKNOWN, found, to_do)
