"""What happened: the feed's events, the ledger of bills and emails, the logs of calls."""

from __future__ import annotations

from typing import Any

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.models import Event, FeedCall

from .database import Database

_ROW = 150  # approximate bytes of a row besides its texts
_REQUEST = f"{_ROW} + length(CAST(path AS BLOB)) + length(CAST(query AS BLOB))"  # in bytes
# The last successful call decides when the feed may be read again, so it is never dropped.
_NOT_LAST_SUCCESS = "pk <> ifnull((SELECT pk FROM feed_calls WHERE status = 200 ORDER BY timestamp DESC LIMIT 1), 0)"


class _BoundedLog:
    """Bounds a table to `limit` bytes by dropping its oldest rows. `weight` is the SQL expression of a row's bytes."""

    def __init__(self, db: Database, table: str, weight: str, limit: int, expendable: str = "TRUE") -> None:
        self._db = db
        self._limit = limit
        oldest = f"SELECT min(pk) FROM {table} WHERE {expendable}"  # noqa: S608 constants only
        self._drop = f"DELETE FROM {table} WHERE pk = ({oldest}) RETURNING {weight}"  # noqa: S608
        self._size: int = db.fetch_value(f"SELECT ifnull(sum({weight}), 0) FROM {table}")  # noqa: S608

    def trim(self, weight: int) -> None:
        """Count a new row of `weight` bytes, and drop the oldest rows beyond the limit."""
        self._size += weight
        while self._size > self._limit and (dropped := self._db.fetch_value(self._drop)):
            self._size -= dropped


class ActivityLog:
    """Reads and writes the feed's events, the ledger and the logs of calls."""

    def __init__(self, db: Database, log_bytes: int) -> None:
        """`log_bytes` bounds the request log. The feed usage log has an eighth of it."""
        self._db = db
        self._requests = _BoundedLog(db, "requests", _REQUEST, log_bytes)
        self._feed_calls = _BoundedLog(db, "feed_calls", str(_ROW), log_bytes // 8, _NOT_LAST_SUCCESS)

    def add_event(self, kind: str, timestamp: int, data: str) -> None:
        self._db.run("INSERT INTO events (type, timestamp, data) VALUES (?, ?, ?)", kind, timestamp, data)

    def add_events(self, count: int, kind: str, timestamp: int, data: str) -> None:
        """Append `count` equal events in one statement."""
        self._db.run(
            "INSERT INTO events (type, timestamp, data) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
            " WHERE i < ?) SELECT ?, ?, ? FROM n",
            *(count, kind, timestamp, data),
        )

    def events_after(self, cursor: int, limit: int) -> list[Event]:
        """Return events by primary key, oldest first. The cost does not depend on the position."""
        rows = self._db.fetch_all(
            "SELECT id, type, timestamp, data FROM events WHERE id > ? ORDER BY id LIMIT ?", cursor, limit
        )
        return [Event(*row) for row in rows]

    def last_event_id(self) -> int:
        return self._db.fetch_value("SELECT max(id) FROM events") or 0

    def bill(self, transfer_id: str, timestamp: int) -> None:
        self._db.run(
            "INSERT INTO ledger (kind, transfer_id, timestamp) VALUES ('billed', ?, ?)", transfer_id, timestamp
        )

    def email(self, transfer_id: str, recipients: list[str], timestamp: int) -> None:
        rows: list[tuple[Any, ...]] = [(transfer_id, recipient, timestamp) for recipient in recipients]
        self._db.run_many(
            "INSERT INTO ledger (kind, transfer_id, recipient, timestamp) VALUES ('emailed', ?, ?, ?)", rows
        )

    def ledger(self) -> list[dict[str, Any]]:
        return [
            dict(row)
            for row in self._db.fetch_all("SELECT kind, transfer_id, recipient, timestamp FROM ledger ORDER BY pk")
        ]

    def add_request(
        self, timestamp: int, method: str, path: str, query: str, status: int, counted_for: int | None
    ) -> None:
        """Record a request. `counted_for` is the key whose rate window it is in."""
        path, query = path[: defaults.MAX_LOGGED_TEXT], query[: defaults.MAX_LOGGED_TEXT]
        self._db.run(
            "INSERT INTO requests (timestamp, method, path, query, status, counted_for) VALUES (?, ?, ?, ?, ?, ?)",
            *(timestamp, method, path, query, status, counted_for),
        )
        self._requests.trim(_ROW + len(path.encode()) + len(query.encode()))

    def requests(self) -> list[dict[str, Any]]:
        return [
            dict(row)
            for row in self._db.fetch_all("SELECT method, path, query, status, timestamp FROM requests ORDER BY pk")
        ]

    def counted_requests(self, since: int) -> list[tuple[int, int]]:
        """Return (key, timestamp) of the counted requests, oldest first."""
        rows = self._db.fetch_all(
            "SELECT counted_for, timestamp FROM requests WHERE counted_for IS NOT NULL AND timestamp > ?"
            " ORDER BY timestamp",
            since,
        )
        return [tuple(row) for row in rows]

    def add_feed_call(self, timestamp: int, status: int, events: int) -> None:
        self._db.run("INSERT INTO feed_calls (timestamp, status, events) VALUES (?, ?, ?)", timestamp, status, events)
        self._feed_calls.trim(_ROW)

    def feed_calls(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.fetch_all("SELECT timestamp, status, events FROM feed_calls ORDER BY pk")]

    def feed_calls_before(self, before: int, limit: int) -> list[FeedCall]:
        """Return the calls before a pk, newest first."""
        select = "SELECT pk, timestamp, status, events FROM feed_calls WHERE pk < ? ORDER BY pk DESC LIMIT ?"
        return [FeedCall(*row) for row in self._db.fetch_all(select, before, limit)]

    def last_feed_success(self) -> int | None:
        timestamp: int | None = self._db.fetch_value("SELECT max(timestamp) FROM feed_calls WHERE status = 200")
        return timestamp
