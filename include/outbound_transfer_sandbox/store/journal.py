"""What happened: events of the feed, the ledger of bills and emails, and the logs of calls."""

from __future__ import annotations

from typing import Any

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.models import Event, FeedCall

from .database import Database

_ROW = 150  # what a row takes besides its texts, roughly
_REQUEST = f"{_ROW} + length(CAST(path AS BLOB)) + length(CAST(query AS BLOB))"  # in bytes
# The last successful call says when the feed may be read again: it stays, however many have failed since.
_NOT_LAST_SUCCESS = "pk <> ifnull((SELECT pk FROM feed_calls WHERE status = 200 ORDER BY at DESC LIMIT 1), 0)"


class _Log:
    """Keeps the rows of a table within `limit` bytes, the oldest of them going first. `weight` is a row's, in SQL."""

    def __init__(self, db: Database, table: str, weight: str, limit: int, expendable: str = "TRUE") -> None:
        self._db = db
        self._limit = limit
        oldest = f"SELECT min(pk) FROM {table} WHERE {expendable}"  # noqa: S608 constants, as below
        self._drop = f"DELETE FROM {table} WHERE pk = ({oldest}) RETURNING {weight}"  # noqa: S608
        self._held: int = db.value(f"SELECT ifnull(sum({weight}), 0) FROM {table}")  # noqa: S608

    def grew(self, weight: int) -> None:
        self._held += weight
        while self._held > self._limit and (dropped := self._db.value(self._drop)):
            self._held -= dropped


class Journal:
    def __init__(self, db: Database, log_bytes: int) -> None:
        """`log_bytes` bounds the log of requests; that of the feed's calls has an eighth of it."""
        self._db = db
        self._requests = _Log(db, "requests", _REQUEST, log_bytes)
        self._feed_calls = _Log(db, "feed_calls", str(_ROW), log_bytes // 8, _NOT_LAST_SUCCESS)

    def add_event(self, kind: str, at: int, data: str) -> None:
        self._db.run("INSERT INTO events (type, at, data) VALUES (?, ?, ?)", kind, at, data)

    def add_events(self, count: int, kind: str, at: int, data: str) -> None:
        """Appends `count` equal events in one statement."""
        self._db.run(
            "INSERT INTO events (type, at, data) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
            " WHERE i < ?) SELECT ?, ?, ? FROM n",
            *(count, kind, at, data),
        )

    def events_after(self, cursor: int, limit: int) -> list[Event]:
        """Oldest first, by primary key: the cost does not depend on the position."""
        rows = self._db.all("SELECT id, type, at, data FROM events WHERE id > ? ORDER BY id LIMIT ?", cursor, limit)
        return [Event(*row) for row in rows]

    def last_event_id(self) -> int:
        return self._db.value("SELECT max(id) FROM events") or 0

    def bill(self, transfer_id: str, at: int) -> None:
        self._db.run("INSERT INTO ledger (kind, transfer_id, at) VALUES ('billed', ?, ?)", transfer_id, at)

    def email(self, transfer_id: str, recipients: list[str], at: int) -> None:
        rows: list[tuple[Any, ...]] = [(transfer_id, recipient, at) for recipient in recipients]
        self._db.run_many("INSERT INTO ledger (kind, transfer_id, recipient, at) VALUES ('emailed', ?, ?, ?)", rows)

    def ledger(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.all("SELECT kind, transfer_id, recipient, at FROM ledger ORDER BY pk")]

    def add_request(self, at: int, method: str, path: str, query: str, status: int, counted_for: int | None) -> None:
        """`counted_for` is the key whose rate window the request is in."""
        path, query = path[: unspecified.LOGGED_TEXT], query[: unspecified.LOGGED_TEXT]
        self._db.run(
            "INSERT INTO requests (at, method, path, query, status, counted_for) VALUES (?, ?, ?, ?, ?, ?)",
            *(at, method, path, query, status, counted_for),
        )
        self._requests.grew(_ROW + len(path.encode()) + len(query.encode()))

    def requests(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.all("SELECT method, path, query, status, at FROM requests ORDER BY pk")]

    def counted_requests(self, since: int) -> list[tuple[int, int]]:
        """(key, instant) of the counted requests, oldest first."""
        select = "SELECT counted_for, at FROM requests WHERE counted_for IS NOT NULL AND at > ? ORDER BY at"
        return [tuple(row) for row in self._db.all(select, since)]

    def add_feed_call(self, at: int, status: int, events: int) -> None:
        self._db.run("INSERT INTO feed_calls (at, status, events) VALUES (?, ?, ?)", at, status, events)
        self._feed_calls.grew(_ROW)

    def feed_calls(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.all("SELECT at, status, events FROM feed_calls ORDER BY pk")]

    def feed_calls_before(self, before: int, limit: int) -> list[FeedCall]:
        """The newest calls whose pk is smaller, newest first."""
        select = "SELECT pk, at, status, events FROM feed_calls WHERE pk < ? ORDER BY pk DESC LIMIT ?"
        return [FeedCall(*row) for row in self._db.all(select, before, limit)]

    def last_feed_success(self) -> int | None:
        at: int | None = self._db.value("SELECT max(at) FROM feed_calls WHERE status = 200")
        return at
