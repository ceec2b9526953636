"""Checks of databases: their tables, and the state of a feed."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.observability.findings import Finding, Health
from outbound_transfer.store.destination import FeedStatus
from outbound_transfer.store.errors import UnknownFeed
from outbound_transfer.store.tables import GROUPS, Tables
from outbound_transfer.wording import format_duration

#: Seconds after which a feed that is not read is behind. The service recommends a poll every 90 seconds.
MAX_FEED_LAG: Final = 600.0


def check_tables(check: str, target: str, tables: Tables) -> Finding:
    """Return whether a database, called ``target``, responds, and which tables it has."""
    if not tables.database.is_there():
        return Finding(check, Health.OK, f"{target} does not exist yet: the first task that needs it creates it.")
    there = {name: "" if tables.exist(group) else " not created yet" for name, group in GROUPS.items()}
    return Finding(check, Health.OK, f"{target} responds. Tables: {', '.join(map(''.join, there.items()))}.")


def check_feed(feed: FeedStatus, now: datetime) -> Finding:
    """Return how old the cursor of a feed is, and what its last poll got."""
    since, has_more = feed.page_at or feed.updated_at, feed.caught_up is False
    lag = (now - since).total_seconds() if since else None
    age = "at an unknown time" if lag is None else f"{format_duration(lag)} ago"
    end = "; the feed has more." if has_more else "."
    found = f"The cursor is {feed.cursor}, from a page loaded {age}{end}"
    health = Health.OK
    if feed.polled_at and feed.status != 200:
        health, found = Health.DEGRADED, f"{found} The last poll got {feed.status or 'no response'}."
    elif is_behind(lag, has_more=has_more):  # a destination without a log may have had no events
        health = Health.DEGRADED if feed.polled_at or has_more else Health.UNKNOWN
    return Finding("feed", health, found, "" if health is Health.OK else "Check the runs of the ingestion.")


def is_behind(lag: float | None, *, has_more: bool) -> bool:
    """Return whether a feed is behind, ``lag`` seconds (None if unknown) after its last page."""
    return has_more or lag is None or lag > MAX_FEED_LAG


def describe_failure(check: str, target: str, error: BaseException) -> Finding:
    """Return the finding of a failed check; of a driver's error, only the first line without secrets."""
    line = str(redact("".join(str(error).strip().splitlines()[:1])))[:300]
    of_target = f"{target}: " if target else ""
    if isinstance(error, UnknownFeed | SystemExit):
        return Finding(check, Health.UNKNOWN, line, "Run an ingestion, or correct the options.")
    if isinstance(error, OutboundTransferError):
        return Finding(check, Health.BROKEN, f"{of_target}{line}", "Do what the error says.")
    to_do = "Check that it is up, that this machine can reach it, and that its connection is correct."
    return Finding(check, Health.BROKEN, f"{of_target}{type(error).__name__}: {line}".rstrip(": "), to_do)
