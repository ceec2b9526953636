"""Disk space under one quota: the bytes of files, the records, and the database's log of changes beside them."""

from __future__ import annotations

from outbound_transfer_sandbox.errors import ApiError
from outbound_transfer_sandbox.store.blobs import Blobs, on_disk
from outbound_transfer_sandbox.store.database import Database

# Of a quota: kept back for what nobody is refused for, which is bounded by itself (logs of calls, wrong answers) or
# changes what is there already.
_KEPT_BACK = 1 / 4
# What a record takes at most, beside long texts: its columns, its share of the indexes and of pages that are half full.
_RECORD = 500


class Space:
    """Asked before anything grows that a client can make grow. Without a quota there is always room."""

    def __init__(self, db: Database, blobs: Blobs, quota: int | None) -> None:
        self._db = db
        self._blobs = blobs
        self._limit = None if quota is None else int(quota * (1 - _KEPT_BACK))

    def check_file(self, size: int, name: str) -> None:
        """Room for a file of `size` bytes and its record. Raises 503 service_unavailable."""
        if self._limit is not None:
            record = _RECORD + 2 * len(name.encode())  # an index has it too
            self._check(self._db.size() + on_disk(size) + 2 * record, self._limit)

    def check_records(self, count: int, texts: int = 0) -> None:
        """Room for `count` records with `texts` bytes in all. Raises as `check_file`."""
        if self._limit is not None:
            # Each passes through the log of changes as well.
            self._check(self._db.size() - self._db.free() + 2 * (count * _RECORD + texts), self._limit)

    def _check(self, others: int, limit: int) -> None:
        if self._blobs.used + others > limit:
            raise ApiError(503, "service_unavailable", "The disk space is used up (--quota-mb).")
