"""The disk quota: files, records and the database's write-ahead log together."""

from __future__ import annotations

from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.store.blobs import BlobStore, on_disk
from outbound_transfer_sandbox.store.database import Database

# The share of the quota that is reserved for writes that are never refused: logs, wrong answers and changes to
# existing records. Logs and wrong answers have bounds of their own.
_RESERVED_SHARE = 1 / 4
# The most bytes a record takes besides long texts: its columns, its share of indexes and of half-full pages.
_RECORD_BYTES = 500


class Space:
    """Checks the quota before a client's request adds data. Without a quota there is always room."""

    def __init__(self, db: Database, blobs: BlobStore, quota: int | None) -> None:
        self._db = db
        self._blobs = blobs
        self._limit = None if quota is None else int(quota * (1 - _RESERVED_SHARE))

    def check_file(self, size: int, name: str) -> None:
        """Raise 503 service_unavailable unless there is room for a file of `size` bytes and its record."""
        if self._limit is not None:
            record = _RECORD_BYTES + 2 * len(name.encode())  # an index contains the name as well
            self._check(self._db.size() + on_disk(size) + 2 * record, self._limit)

    def check_records(self, count: int, texts: int = 0) -> None:
        """Raise 503 service_unavailable unless there is room for `count` records with `texts` bytes in all."""
        if self._limit is not None:
            # Each record is written to the write-ahead log as well.
            self._check(self._db.size() - self._db.free() + 2 * (count * _RECORD_BYTES + texts), self._limit)

    def _check(self, others: int, limit: int) -> None:
        if self._blobs.used + others > limit:
            raise ApiError(503, "service_unavailable", "The disk space is used up (--quota-mb).")
