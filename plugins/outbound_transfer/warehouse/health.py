"""What databases say of the set-up: the versions of tables, who polls, what is in doubt, where a feed stands."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.protocol.health import (
    Finding,
    Health,
    judge_feed,
    judge_in_doubt,
    judge_poll,
    judge_versions,
)
from outbound_transfer.protocol.poll_lease import PollLease
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.deliveries import DeliveryTables
from outbound_transfer.warehouse.destination import FeedMaintenance
from outbound_transfer.warehouse.errors import UnknownFeed, WarehouseError
from outbound_transfer.warehouse.key_rows import WHERE
from outbound_transfer.warehouse.schema import CLUSTER, TableGroup, is_current, read_versions
from outbound_transfer.warehouse.timestamps import parse_timestamp

#: The key that a connection has used last comes last. Another connection that has the same key may have written it.
_LEASES: Final = (
    "SELECT [account], [key_digest], [lease] FROM {poll_leases} WHERE [conn_id] = ? OR [key_digest] = ?"
    " ORDER BY [updated_at]"
)
_WAITERS: Final = f"SELECT COUNT(DISTINCT [transfer_id]), MIN([interval_seconds]) FROM {{poll_waiters}} {WHERE}"  # noqa: S608


def check_tables(check: str, target: str, warehouse: Warehouse, groups: Iterable[TableGroup]) -> Finding:
    """Return whether a database responds, and has tables that this package can use; or none yet.

    :param target: what the database is called.
    :raises SchemaTooNew: they were created by a newer version of this package.
    """
    if not warehouse.begin_inspection():
        return Finding(check, Health.OK, f"{target} is not there yet: the first task that needs it makes it.")
    return judge_versions(check, target, read_versions(warehouse, groups))


def check_poll(warehouse: Warehouse, conn_id: str, key_digest: str) -> Finding:
    """Return who polls for those who wait on a connection, as the triggerers that share the database have said.

    :param key_digest: of the connection's key; "" if that cannot be read.
    """
    if warehouse.begin_inspection():
        with warehouse.read() as tx:
            if is_current(warehouse, tx, CLUSTER):
                leases = fetch_all(warehouse.run(tx, _LEASES, (conn_id, key_digest)))
                now = warehouse.epoch_time(tx)
                *key, lease = leases[-1] if leases else ("", "", "")
                ((waiting, interval),) = fetch_all(warehouse.run(tx, _WAITERS, key))
                return _judge_lease(lease, int(waiting), float(interval or 0), now)
    return Finding("poll", Health.OK, "No triggerer shares its polls here.")


def _judge_lease(stored: str, waiting: int, interval: float, now: float) -> Finding:
    try:
        lease = msgspec.json.decode(stored, type=PollLease)
    except msgspec.DecodeError:
        lease = PollLease()
    lease.forget_dead(now)
    return judge_poll(waiting, lease.holder.partition(":")[0], now - max(lease.polled_at, lease.held_since), interval)


def check_in_doubt(warehouse: Warehouse, conn_id: str) -> Finding:
    """Return how many deliveries of a connection stay in doubt."""
    is_there = warehouse.begin_inspection()
    return judge_in_doubt(DeliveryTables(warehouse).count_in_doubt(conn_id) if is_there else 0)


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
    if isinstance(error, WarehouseError):
        return Finding(check, Health.BROKEN, f"{of_target}{line}", "Do what the error says.")
    to_do = "See that it is up, that this machine reaches it, and that its connection is right."
    return Finding(check, Health.BROKEN, f"{of_target}{type(error).__name__}: {line}".rstrip(": "), to_do)
