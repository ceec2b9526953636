"""The SQLite database: schema, connection, transactions.

Statements run on the server's event loop, because they take microseconds, less than a switch to a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS users (
    name TEXT PRIMARY KEY, active INTEGER NOT NULL, api_permitted INTEGER NOT NULL, sending_permitted INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS transfer_keys (
    pk INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES users, created_at INTEGER NOT NULL,
    last_used_at INTEGER, revoked_at INTEGER);
CREATE TABLE IF NOT EXISTS event_keys (
    pk INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, created_at INTEGER NOT NULL, revoked_at INTEGER);
CREATE TABLE IF NOT EXISTS transfers (
    pk INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES users, stored_status TEXT NOT NULL,
    subject TEXT NOT NULL, message TEXT, security TEXT NOT NULL, security_question TEXT, security_answer TEXT,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, sent_at INTEGER UNIQUE);
CREATE INDEX IF NOT EXISTS listed ON transfers (user, sent_at)
    WHERE stored_status IN ('pending', 'partial', 'complete', 'canceled', 'expired');
CREATE INDEX IF NOT EXISTS listed_by_status ON transfers (user, stored_status, sent_at) WHERE sent_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS outstanding ON transfers (stored_status, expires_at);
CREATE TABLE IF NOT EXISTS recipients (
    pk INTEGER PRIMARY KEY, transfer INTEGER NOT NULL REFERENCES transfers ON DELETE CASCADE,
    email TEXT NOT NULL, name TEXT NOT NULL, phone TEXT, picked_up_at INTEGER);
CREATE INDEX IF NOT EXISTS recipients_of ON recipients (transfer);
CREATE TABLE IF NOT EXISTS files (
    pk INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, transfer INTEGER NOT NULL REFERENCES transfers ON DELETE CASCADE,
    name TEXT NOT NULL, size INTEGER NOT NULL, content_type TEXT NOT NULL, UNIQUE (transfer, name));
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, type TEXT NOT NULL, timestamp INTEGER NOT NULL, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (
    pk INTEGER PRIMARY KEY, kind TEXT NOT NULL, transfer_id TEXT NOT NULL, recipient TEXT, timestamp INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
    pk INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL, query TEXT NOT NULL,
    status INTEGER NOT NULL, counted_for INTEGER);
CREATE TRIGGER IF NOT EXISTS key_used AFTER INSERT ON requests WHEN new.counted_for IS NOT NULL BEGIN
    UPDATE transfer_keys SET last_used_at = new.timestamp WHERE pk = new.counted_for; END;
CREATE TABLE IF NOT EXISTS feed_calls (
    pk INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, status INTEGER NOT NULL, events INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS feed_successes ON feed_calls (timestamp) WHERE status = 200;
CREATE TABLE IF NOT EXISTS key_labels (key INTEGER PRIMARY KEY REFERENCES transfer_keys, label TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS credentials (
    user TEXT PRIMARY KEY REFERENCES users, password TEXT NOT NULL, administrator INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS guests (email TEXT PRIMARY KEY, password TEXT NOT NULL, registered_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (hash BLOB PRIMARY KEY, subject TEXT NOT NULL, expires_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (subject TEXT PRIMARY KEY, wrong INTEGER NOT NULL, timestamp INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS links (hash BLOB PRIMARY KEY, recipient INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS codes (recipient INTEGER PRIMARY KEY, hash TEXT NOT NULL, expires_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS mail (
    pk INTEGER PRIMARY KEY, kind TEXT NOT NULL, channel TEXT NOT NULL, user TEXT NOT NULL, address TEXT NOT NULL,
    recipient INTEGER NOT NULL, secret TEXT NOT NULL, timestamp INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS mail_of ON mail (user, pk);
CREATE INDEX IF NOT EXISTS mail_to ON mail (address, pk);
"""


#: Of the write-ahead log between two transactions.
_MAX_LOG_BYTES = 4_096_000


class DataInUse(Exception):
    """Another process has the data directory open."""


class Database:
    """The only connection to the file. Raises DataInUse if another process has it open.

    A committed transaction survives any end of the process and, with `durable`, a failure of the machine.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        # The thread that creates it may not be the event loop's, but only one thread uses it at a time.
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare("NORMAL" if durable else "OFF")
        except sqlite3.OperationalError as error:
            self._connection.close()
            if "locked" in str(error):
                raise DataInUse(f"{path.parent} is in use by another process") from None
            raise

    def _prepare(self, synchronous: str) -> None:
        # Exclusive, because rate windows are in memory and a second process would not see them.
        pragmas = f"synchronous={synchronous}", "locking_mode=EXCLUSIVE", "journal_mode=WAL", "foreign_keys=ON"
        for pragma in pragmas:
            self.run(f"PRAGMA {pragma}")
        self._connection.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} COMMIT;")
        self.run(f"PRAGMA journal_size_limit={_MAX_LOG_BYTES}")  # truncate the log after a large transaction

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything in the block, or nothing. Do not nest transactions, and do not await inside one."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself rolls back when the disk is full
                self.run("ROLLBACK")
            raise
        self.run("COMMIT")

    def run(self, sql: str, *parameters: Any) -> int:
        """Execute a statement, and return the rowid of the inserted row or 0."""
        return self._connection.execute(sql, parameters).lastrowid or 0

    def run_many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        self._connection.executemany(sql, rows)

    def fetch_all(self, sql: str, *parameters: Any) -> list[sqlite3.Row]:
        return self._connection.execute(sql, parameters).fetchall()

    def fetch_one(self, sql: str, *parameters: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._connection.execute(sql, parameters).fetchone()
        return row

    def fetch_value(self, sql: str, *parameters: Any) -> Any:
        """Return the first column of the first row, or None."""
        row = self.fetch_one(sql, *parameters)
        return row[0] if row else None
