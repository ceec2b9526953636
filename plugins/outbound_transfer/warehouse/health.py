"""What databases say of the set-up: the versions of tables, and where a feed stands."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.client.health import Finding, Health, judge_feed
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.destination import FeedMaintenance
from outbound_transfer.warehouse.errors import UnknownFeed
from outbound_transfer.warehouse.schema import TableGroup, read_versions
from outbound_transfer.warehouse.timestamps import parse_timestamp


def check_tables(check: str, target: str, warehouse: Warehouse, groups: Iterable[TableGroup]) -> Finding:
    """Return whether a database responds, and has tables that this package can use; or none yet.

    :param target: what the database is called.
    :raises SchemaTooNew: they were created by a newer version of this package.
    """
    if not warehouse.begin_inspection():
        return Finding(check, Health.OK, f"{target} is not there yet: the first task that needs it makes it.")
    versions = read_versions(warehouse, groups).items()
    shown = ", ".join(f"{name} {version or 'not made yet'}" for name, version in versions)
    return Finding(check, Health.OK, f"{target} responds. Versions of tables: {shown}.")


def check_feed(feed: FeedMaintenance, now: datetime) -> Finding:
    """Return how old the cursor of a feed is, and what its last poll got.

    :raises UnknownFeed: the feed has never been read.
    :raises InvalidCursor: the stored value is not a cursor.
    """
    position = feed.read_position()
    since = parse_timestamp(position.page_at or position.updated_at)
    return judge_feed(
        position.cursor,
        (now - since).total_seconds() if since else None,
        position.status,
        has_more=position.caught_up is False,
        logs_polls=position.polled_at is not None,
    )


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
