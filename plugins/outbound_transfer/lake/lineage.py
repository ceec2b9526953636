"""Where a commit is in the history of an Iceberg table: in effect, rolled back, or not known any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from outbound_transfer.lake.feed_state import COMMIT

#: Milliseconds that a snapshot may be older than the one before it: the clocks of writers differ.
_MAX_SKEW: Final = 60_000


def find_commit(metadata: TableMetadata, commit_id: str) -> Snapshot | None:
    """Return the last snapshot of a commit; None if it is not there, or has expired."""
    return next((each for each in reversed(metadata.snapshots) if _commit_of(each) == commit_id), None)


def _commit_of(snapshot: Snapshot) -> str | None:
    return snapshot.summary.additional_properties.get(COMMIT) if snapshot.summary else None


def is_rolled_back(metadata: TableMetadata, commit_id: str, committed_at: datetime | None) -> bool:
    """Return whether the table's rows are certainly without a commit. One that has expired proves nothing by itself.

    :param committed_at: with a time zone; None if it is not known.
    """
    current = metadata.current_snapshot()
    if current is None:
        return True  # an expiry leaves the newest snapshot
    if _commit_of(current) == commit_id:
        return False
    if (commit := find_commit(metadata, commit_id)) is not None:
        return _is_certainly_no_ancestor(metadata, commit, current)
    return committed_at is not None and current.timestamp_ms + _MAX_SKEW < committed_at.timestamp() * 1000


def _is_certainly_no_ancestor(metadata: TableMetadata, commit: Snapshot, current: Snapshot) -> bool:
    lineage = list(_lineage(metadata, current))
    if any(each.snapshot_id == commit.snapshot_id for each in lineage):
        return False
    # Others in between may have expired: then the lineage that is known ends after the commit.
    oldest = lineage[-1]
    return oldest.parent_snapshot_id is None or (oldest.sequence_number or 0) < (commit.sequence_number or 0)


def _lineage(metadata: TableMetadata, snapshot: Snapshot) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, as far as they have not expired."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    found: Snapshot | None = snapshot
    while found is not None:
        yield found
        # Each once, even if the metadata go in a circle.
        found = by_id.pop(found.parent_snapshot_id, None) if found.parent_snapshot_id is not None else None
