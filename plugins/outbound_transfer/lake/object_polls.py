"""The log of polls that loaded nothing: small objects whose names sort by time, a bounded number of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from outbound_transfer.lake.object_chain import NOT_JSON, account_folder, compact_timestamp
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.warehouse.destination import CLAIM, MAX_NOTE, PollRecord
from outbound_transfer.warehouse.rows import storable_text
from outbound_transfer.warehouse.timestamps import format_timestamp

#: Number of polls that start a cleanup, and that it leaves.
MAX_POLLS: Final = 200
_LEFT: Final = 100


class StoredPoll(PollRecord, frozen=True, kw_only=True):
    """A poll and its time."""

    polled_at: str


class PollLog:
    """The log of one feed's polls.

    :param clock: the current time, with a time zone.
    """

    def __init__(self, store: ObjectStore, account: str, clock: Callable[[], datetime]) -> None:
        self._store, self._folder, self._now = store, f"_polls/{account_folder(account)}", clock

    def append(self, poll: PollRecord) -> None:
        """Record a poll; delete the oldest if they are too many."""
        now = self._now()
        note = None if poll.note is None else storable_text(poll.note)[:MAX_NOTE]
        fields = msgspec.structs.asdict(poll) | {"note": note, "polled_at": format_timestamp(now)}
        name = f"{compact_timestamp(now)}-{poll.action}-{uuid.uuid4().hex}.json"
        self._store.replace(f"{self._folder}/{name}", msgspec.json.encode(fields))
        names = self._names()
        for each in names[:-_LEFT] if len(names) > MAX_POLLS else ():
            self._delete(each)

    def newest(self, *actions: str) -> StoredPoll | None:
        """Return the newest poll of some actions; None if there is none."""
        return next(self._polls(*actions), None)

    def newest_cursor(self) -> int:
        """Return the cursor that the newest poll or command found or set; 0 if there is none."""
        newest = self.newest("poll", "reset", "rebuild")
        if newest is None:
            return 0
        return newest.cursor_from if newest.action == "poll" else newest.cursor_to or 0

    def greatest_claim(self, position: int) -> int:
        """Return the greatest cursor that was claimed for the page after ``position``; 0 if none."""
        claims = (each.cursor_to or 0 for each in self._polls(CLAIM) if each.cursor_from == position)
        return max(claims, default=0)

    def forget_claims(self) -> None:
        """Forget the claims, which are invalid once the cursor is set: the same responses come again."""
        for name in self._names(CLAIM):
            self._delete(name)

    def _polls(self, *actions: str) -> Iterator[StoredPoll]:
        """Yield the polls that can be read, the newest first."""
        for name in reversed(self._names(*actions)):
            try:
                yield msgspec.json.decode(self._store.read(f"{self._folder}/{name}") or b"", type=StoredPoll)
            except NOT_JSON:
                continue

    def _names(self, *actions: str) -> list[str]:
        names = [name for name in self._store.list_names(self._folder) if not name.endswith("/")]
        return [name for name in names if not actions or any(f"-{action}-" in name for action in actions)]

    def _delete(self, name: str) -> None:
        self._store.delete(f"{self._folder}/{name}")
