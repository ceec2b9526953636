"""The account: settings, clock offset, users and keys. Only a key's SHA-256 is stored."""

from __future__ import annotations

import msgspec

from outbound_transfer_sandbox.domain.models import Account, Caller, TransferKey, User

from .database import Database


class AccountStore:
    """Reads and writes the account's tables."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def settings(self) -> Account:
        stored = self._setting("account")
        return msgspec.json.decode(stored, type=Account) if stored else Account()

    def save_settings(self, account: Account) -> None:
        self._save("account", msgspec.json.encode(account).decode())

    def clock_offset(self) -> int:
        return int(self._setting("clock_offset") or 0)

    def save_clock_offset(self, offset: int) -> None:
        self._save("clock_offset", str(offset))

    def _setting(self, name: str) -> str | None:
        value: str | None = self._db.fetch_value("SELECT value FROM settings WHERE name = ?", name)
        return value

    def _save(self, name: str, value: str) -> None:
        self._db.run("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, value)

    def user(self, name: str) -> User | None:
        row = self._db.fetch_one(
            "SELECT name, active, api_permitted, sending_permitted FROM users WHERE name = ?", name
        )
        return User(row[0], *map(bool, row[1:])) if row else None

    def save_user(self, user: User) -> None:
        upsert = (
            "INSERT INTO users VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET active = excluded.active,"
            " api_permitted = excluded.api_permitted, sending_permitted = excluded.sending_permitted"
        )
        self._db.run(upsert, user.name, user.active, user.api_permitted, user.sending_permitted)

    def add_transfer_key(self, digest: bytes, user: str, now: int) -> None:
        """Store a key. A revoked key becomes valid again."""
        self._db.run(
            "INSERT INTO transfer_keys (hash, user, created_at) VALUES (?, ?, ?)"
            " ON CONFLICT (hash) DO UPDATE SET revoked_at = NULL, user = excluded.user",
            *(digest, user, now),
        )

    def caller(self, digest: bytes) -> tuple[Caller, User] | None:
        """Return the owner of a key that is not revoked."""
        row = self._db.fetch_one(
            "SELECT pk, name, active, api_permitted, sending_permitted FROM transfer_keys JOIN users ON name = user"
            " WHERE hash = ? AND revoked_at IS NULL",
            digest,
        )
        return (Caller(row[0], row[1]), User(row[1], *map(bool, row[2:]))) if row else None

    def revoke_transfer_key(self, digest: bytes, now: int) -> bool:
        """Revoke a key, and return whether it exists."""
        revoke = "UPDATE transfer_keys SET revoked_at = coalesce(revoked_at, ?) WHERE hash = ? RETURNING pk"
        return bool(self._db.fetch_all(revoke, now, digest))

    def label_transfer_key(self, digest: bytes, label: str) -> None:
        self._db.run("INSERT INTO key_labels SELECT pk, ? FROM transfer_keys WHERE hash = ?", label, digest)

    def transfer_keys(self, user: str) -> list[TransferKey]:
        """Return the user's keys, newest first."""
        rows = self._db.fetch_all(
            "SELECT k.pk, coalesce(l.label, ''), k.created_at, k.last_used_at, k.revoked_at FROM transfer_keys k"
            " LEFT JOIN key_labels l ON l.key = k.pk WHERE k.user = ? ORDER BY k.pk DESC",
            user,
        )
        return [TransferKey(*row) for row in rows]

    def revoke_own_key(self, user: str, pk: int, now: int) -> bool:
        """Revoke one of the user's keys, and return whether it exists."""
        revoke = "UPDATE transfer_keys SET revoked_at = coalesce(revoked_at, ?) WHERE user = ? AND pk = ? RETURNING pk"
        return bool(self._db.fetch_all(revoke, now, user, pk))

    def transfer_key_count(self) -> int:
        return int(self._db.fetch_value("SELECT count(*) FROM transfer_keys"))

    def replace_event_key(self, digest: bytes, now: int) -> None:
        """Make this the one active event key (service-api.md, R9)."""
        with self._db.transaction():
            self._db.run("UPDATE event_keys SET revoked_at = ? WHERE revoked_at IS NULL", now)
            self._db.run(
                "INSERT INTO event_keys (hash, created_at) VALUES (?, ?)"
                " ON CONFLICT (hash) DO UPDATE SET revoked_at = NULL",
                *(digest, now),
            )

    def revoke_event_key(self, now: int) -> None:
        self._db.run("UPDATE event_keys SET revoked_at = ? WHERE revoked_at IS NULL", now)

    def event_key(self) -> bytes | None:
        """Return the digest of the active event key."""
        digest: bytes | None = self._db.fetch_value("SELECT hash FROM event_keys WHERE revoked_at IS NULL")
        return digest

    def event_key_count(self) -> int:
        return int(self._db.fetch_value("SELECT count(*) FROM event_keys"))
