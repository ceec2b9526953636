"""What databases say of the set-up: the versions of tables, and where a feed stands."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.observability.findings import Finding, Health
from outbound_transfer.store.destination import FeedMaintenance
from outbound_transfer.store.errors import UnknownFeed
from outbound_transfer.store.schema import GROUPS, Tables
from outbound_transfer.store.values import read_event_time
from outbound_transfer.wording import format_duration

#: Seconds after which a feed that is not read is behind. The service recommends a poll every 90 seconds.
MAX_FEED_LAG: Final = 600.0


def check_tables(check: str, target: str, tables: Tables) -> Finding:
    """Return whether a database responds, and has tables that this package can use; or none yet.

    :param target: what the database is called.
    """
    if not tables.database.is_there():
        return Finding(check, Health.OK, f"{target} is not there yet: the first task that needs it makes it.")
    there = {name: "" if tables.exist(group) else " not made yet" for name, group in GROUPS.items()}
    return Finding(check, Health.OK, f"{target} responds. Tables: {', '.join(map(''.join, there.items()))}.")


def check_feed(feed: FeedMaintenance, now: datetime) -> Finding:
    """Return how old the cursor of a feed is, and what its last poll got.

    :raises UnknownFeed: the feed has never been read.
    :raises InvalidCursor: the stored value is not a cursor.
    """
    position = feed.read_position()
    since = read_event_time(position.page_at or position.updated_at)
    return judge_feed(
        position.cursor,
        (now - since).total_seconds() if since else None,
        position.status,
        has_more=position.caught_up is False,
        logs_polls=position.polled_at is not None,
    )


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


def describe_failure(check: str, target: str, error: BaseException) -> Finding:
    """Return the finding of a check that has failed: of a driver's error, the first line without secrets."""
    line = str(redact("".join(str(error).strip().splitlines()[:1])))[:300]
    of_target = f"{target}: " if target else ""
    if isinstance(error, UnknownFeed | SystemExit):
        return Finding(check, Health.UNKNOWN, line, "Run an ingestion, or correct the options.")
    if isinstance(error, OutboundTransferError):
        return Finding(check, Health.BROKEN, f"{of_target}{line}", "Do what the error says.")
    to_do = "See that it is up, that this machine reaches it, and that its connection is right."
    return Finding(check, Health.BROKEN, f"{of_target}{type(error).__name__}: {line}".rstrip(": "), to_do)
