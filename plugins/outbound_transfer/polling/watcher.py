"""Reports each transfer of a key that finishes, once, across restarts of the process."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any, Final

import msgspec

from outbound_transfer.polling.schedule import PollTimes, interval_or_default
from outbound_transfer.protocol.listings import Row
from outbound_transfer.protocol.models import Transfer
from outbound_transfer.protocol.outcomes import TERMINAL_STATUSES

log = logging.getLogger(__name__)

#: Maximum seconds by which a transfer may appear in the listing later than one that was sent after it.
LISTING_OVERLAP: Final = 120.0

#: Number of newest transfers that are remembered (two pages): a transfer above one of them in the listing is new.
MAX_RECENT: Final = 200

#: Seconds for which a transfer stays missing until it is regarded as deleted.
MAX_MISSING: Final = 7 * 86_400.0


class _State(msgspec.Struct):
    since: float
    outstanding: dict[str, float]
    recent: dict[str, float]
    missing: dict[str, float] = {}


class CompletionWatcher:
    """Reports the transfers of a key that reach a terminal status.

    Transfers that finished before the first poll are not reported. A transfer is new if it is listed above a known
    one, whatever send time it has, or if it was sent after the newest known one.

    An outstanding transfer that the key does not see (404) is missing. It may have been deleted, or the connection may
    hold the key of another user for a while, so it stays outstanding until it was missing for :data:`MAX_MISSING`.

    :ivar outstanding: transfers that have not finished, each with its send time in epoch seconds; 0 if unknown.
    :ivar missing: those of them that the key did not see at their last read, each with the time of the first such read.
    :ivar interval: seconds between two polls.
    :ivar polled_at: when the last poll for new transfers started, in monotonic seconds.
    :ivar scanned_at: when the last poll of the outstanding transfers started, in monotonic seconds.
    """

    def __init__(self, interval: float, polled_at: float, state: Any = None) -> None:
        """
        :param state: state that :meth:`drain` returned, also in another process. An invalid state is ignored.
        """
        self.interval, self.polled_at, self.scanned_at = interval_or_default(interval), polled_at, polled_at
        known = _parse_state(state)
        self.outstanding: dict[str, float] = known.outstanding if known else {}
        self.missing: dict[str, float] = known.missing if known else {}
        self._recent: dict[str, float] = known.recent if known else {}
        self._since: float | None = known.since if known else None
        self._finished: list[Transfer] = []
        self._is_changed = False

    @property
    def is_new(self) -> bool:
        """Whether the outstanding transfers are not known yet."""
        return self._since is None

    @property
    def since(self) -> float:
        """The time before which all sent transfers are known, in seconds since the epoch."""
        return self._since - LISTING_OVERLAP if self._since else -inf

    @property
    def known(self) -> frozenset[str]:
        """Ids of the newest transfers at the last poll."""
        return frozenset(self._recent)

    @property
    def has_updates(self) -> bool:
        """Whether :meth:`drain` returns anything."""
        return self._is_changed and not self.is_new

    @property
    def has_finished(self) -> bool:
        """Whether :meth:`drain` returns any transfers."""
        return bool(self._finished)

    def due_at(self, times: PollTimes) -> float:
        """Return when the watcher is polled next, in monotonic seconds."""
        return times.next_after(self.polled_at, self.interval)

    def scan_due_at(self, times: PollTimes) -> float:
        """Return from when on a poll of the watcher also polls its outstanding transfers, in monotonic seconds."""
        return times.next_after(self.scanned_at, self.interval, has_hints=True)

    def update(self, transfer: Transfer) -> None:
        """Apply a transfer as a poll has read it."""
        if self.missing.pop(transfer.id, None) is not None:
            self._is_changed = True
        if transfer.id in self.outstanding and transfer.status in TERMINAL_STATUSES:
            del self.outstanding[transfer.id]
            self._record_finished(transfer)

    def record_missing(self, transfer_ids: Collection[str], now: float) -> None:
        """Record that the key does not see these transfers. Remove those that were missing for long.

        :param now: seconds since the epoch.
        """
        missing = self.outstanding.keys() & set(transfer_ids)
        if new := missing - self.missing.keys():
            self.missing |= dict.fromkeys(new, now)
            self._is_changed = True
            log.warning(
                "The key does not see %d outstanding transfers of a watcher, such as '%.100s'; they are read again, "
                "less and less often, for %d days",
                len(new),
                min(new),
                MAX_MISSING // 86_400,
            )
        for gone in missing:
            if now - self.missing[gone] >= MAX_MISSING:
                del self.outstanding[gone], self.missing[gone]
                self._is_changed = True

    def initialize(self, newest: Sequence[Row], outstanding: Iterable[Row], now: float) -> None:
        """Apply the first listings, as :func:`.listings.list_outstanding` returns them.

        :param newest: the newest transfers, newest first.
        :param outstanding: the outstanding transfers.
        :param now: seconds since the epoch.
        """
        for row in newest:
            if row.transfer and row.transfer.status not in TERMINAL_STATUSES:
                self.outstanding[row.id] = row.sent_at or 0.0
        self.outstanding |= {row.id: row.sent_at or 0.0 for row in outstanding}
        self._remember(newest, now)
        self._is_changed = True

    def update_from_listing(self, newest: Sequence[Row], now: float) -> None:
        """Apply a later listing, as :func:`.listings.list_sent_since` returns it.

        :param newest: the newest transfers, newest first.
        :param now: seconds since the epoch.
        """
        shown = [position for position, row in enumerate(newest) if row.id in self._recent]
        lowest = max(shown, default=-1)
        for position, row in enumerate(newest):
            if row.id in self.outstanding:
                if row.transfer:
                    self.update(row.transfer)
            elif row.id not in self._recent and (position < lowest or self._is_late(row, has_known_rows=bool(shown))):
                self._add_new(row)
        self._remember(newest, now)

    def _is_late(self, row: Row, *, has_known_rows: bool) -> bool:
        """Return whether a row that is listed below all known ones is new nevertheless."""
        sent = row.sent_at
        return sent >= self.since if sent is not None else not has_known_rows

    def _add_new(self, row: Row) -> None:
        self._is_changed = True
        if row.transfer and row.transfer.status in TERMINAL_STATUSES:
            self._record_finished(row.transfer)
        else:  # a row that cannot be read in the listing may be readable alone
            self.outstanding[row.id] = row.sent_at or 0.0

    def _remember(self, newest: Sequence[Row], now: float) -> None:
        before = self._since, self._recent
        # A transfer that one listing omits may appear in the next one.
        listed = {row.id: row.sent_at or 0.0 for row in newest}
        known = listed | {one: at for one, at in self._recent.items() if one not in listed}
        self._recent = dict(islice(known.items(), MAX_RECENT))
        # Ignore send times in the future: transfers that are sent before such a time would be missed.
        self._since = max((at for at in self._recent.values() if at <= now), default=self._since or 0.0)
        self._is_changed |= before != (self._since, self._recent)

    def drain(self) -> tuple[list[Transfer], dict[str, Any] | None]:
        """Return the finished transfers that are not reported yet, and the state to store once they are.

        The state is None if it has not changed.
        """
        finished, self._finished = self._finished, []
        state = {
            "since": self._since,
            "outstanding": dict(self.outstanding),
            "recent": dict(self._recent),
            "missing": dict(self.missing),
        }
        has_updates, self._is_changed = self.has_updates, False
        return finished, state if has_updates else None

    def _record_finished(self, transfer: Transfer) -> None:
        self._finished.append(transfer)
        self._is_changed = True


def _parse_state(state: Any) -> _State | None:
    try:
        return msgspec.convert(state, _State | None)
    except msgspec.ValidationError as error:
        log.warning("Ignoring the stored state of this watcher; it starts with the current transfers: %s", error)
        return None
