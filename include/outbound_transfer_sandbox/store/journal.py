"""What happened: events of the feed, the ledger of bills and emails, and the logs of calls."""

from __future__ import annotations

from typing import Any

from outbound_transfer_sandbox.models import Event, FeedCall

from .database import Database


class Journal:
    def __init__(self, db: Database, kept: int) -> None:
        """`kept` bounds the logs of calls."""
        self._db = db
        self._kept = kept

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
        pk = self._db.run(
            "INSERT INTO requests (at, method, path, query, status, counted_for) VALUES (?, ?, ?, ?, ?, ?)",
            *(at, method, path, query, status, counted_for),
        )
        if pk % 1000 == 0:
            self._db.run("DELETE FROM requests WHERE pk <= ?", pk - self._kept)

    def requests(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.all("SELECT method, path, query, status, at FROM requests ORDER BY pk")]

    def counted_requests(self, since: int) -> list[tuple[int, int]]:
        """(key, instant) of the counted requests, oldest first."""
        select = "SELECT counted_for, at FROM requests WHERE counted_for IS NOT NULL AND at > ? ORDER BY at"
        return [tuple(row) for row in self._db.all(select, since)]

    def add_feed_call(self, at: int, status: int, events: int) -> None:
        pk = self._db.run("INSERT INTO feed_calls (at, status, events) VALUES (?, ?, ?)", at, status, events)
        if pk % 1000 == 0:
            self._db.run("DELETE FROM feed_calls WHERE pk <= ?", pk - self._kept)

    def feed_calls(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.all("SELECT at, status, events FROM feed_calls ORDER BY pk")]

    def feed_calls_before(self, before: int, limit: int) -> list[FeedCall]:
        """The newest calls whose pk is smaller, newest first."""
        select = "SELECT pk, at, status, events FROM feed_calls WHERE pk < ? ORDER BY pk DESC LIMIT ?"
        return [FeedCall(*row) for row in self._db.all(select, before, limit)]

    def last_feed_success(self) -> int | None:
        at: int | None = self._db.value("SELECT max(at) FROM feed_calls WHERE status = 200")
        return at
