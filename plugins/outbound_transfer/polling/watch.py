"""Noticing the end of every transfer of a key, each once, however often the process that watches is restarted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any, Final

import msgspec

from outbound_transfer.polling.schedule import interval_of, next_look
from outbound_transfer.protocol.models import Transfer
from outbound_transfer.protocol.outcomes import FINAL
from outbound_transfer.protocol.rounds import Row

log = logging.getLogger(__name__)

#: Seconds that a send may take to show up in the listing behind a later one.
OVERLAP: Final = 120.0

#: The newest transfers that are remembered, two pages, so that what stands above them in the listing is seen to be new.
WINDOW: Final = 200


class _State(msgspec.Struct):
    since: float
    outstanding: dict[str, float]
    recent: dict[str, float]


class Watch:
    """What one watcher knows of the transfers of a key.

    A transfer that has ended before the watch first looked is never told of. One is new that stands in the listing
    above one that is known, whatever time it claims; or that was sent since the newest that is known.

    :ivar outstanding: the transfers whose end has not been seen, each with when it was sent; 0 where that is not known.
    :ivar interval: seconds between two looks.
    :ivar looked: when the last look began, in steady seconds.
    """

    def __init__(self, interval: float, looked: float, state: Any = None) -> None:
        """
        :param state: what :meth:`take` gave, perhaps to another process. What is no such state is as none.
        """
        self.interval, self.looked = interval_of(interval), looked
        known = _read(state)
        self.outstanding: dict[str, float] = known.outstanding if known else {}
        self._recent: dict[str, float] = known.recent if known else {}
        self._since: float | None = known.since if known else None
        self._ended: list[Transfer] = []
        self._is_changed = False

    @property
    def is_new(self) -> bool:
        """Whether it has yet to learn which transfers are outstanding."""
        return self._since is None

    @property
    def since(self) -> float:
        """Transfers that were sent before it are known, in seconds since the epoch."""
        return self._since - OVERLAP if self._since else -inf

    @property
    def known(self) -> frozenset[str]:
        """The newest transfers when it last looked."""
        return frozenset(self._recent)

    @property
    def has_news(self) -> bool:
        """Whether :meth:`take` gives anything."""
        return self._is_changed and not self.is_new

    def due(self, grid: float) -> float:
        return next_look(self.looked, grid, self.interval)

    def see(self, transfer: Transfer) -> None:
        """Take in one transfer as a look has shown it."""
        if transfer.status in FINAL and self.outstanding.pop(transfer.id, None) is not None:
            self._tell(transfer)

    def forget(self, transfer_ids: Iterable[str]) -> None:
        """The key does not see these any more."""
        for gone in self.outstanding.keys() & set(transfer_ids):
            del self.outstanding[gone]
            self._is_changed = True

    def begin(self, newest: Sequence[Row], outstanding: Iterable[Row], now: float) -> None:
        """Take in the first look's :func:`.rounds.begin`, at ``now`` (seconds since the epoch)."""
        for row in newest:
            if row.transfer and row.transfer.status not in FINAL:
                self.outstanding[row.id] = row.sent or 0.0
        for row in outstanding:
            self.outstanding[row.id] = row.sent or 0.0
        self._remember(newest, now)
        self._is_changed = True

    def scan(self, newest: Sequence[Row], now: float) -> None:
        """Take in what :func:`.rounds.sent_since` has listed, at ``now`` (seconds since the epoch)."""
        shown = [position for position, row in enumerate(newest) if row.id in self._recent]
        lowest = max(shown, default=-1)
        for position, row in enumerate(newest):
            if row.id in self.outstanding:
                if row.transfer:
                    self.see(row.transfer)
            elif row.id not in self._recent and (position < lowest or self._is_late(row, is_shown=bool(shown))):
                self._add(row)
        self._remember(newest, now)

    def _is_late(self, row: Row, *, is_shown: bool) -> bool:
        """Whether a row below all that are known is new all the same."""
        sent = row.sent
        return sent >= self.since if sent is not None else not is_shown

    def _add(self, row: Row) -> None:
        self._is_changed = True
        if row.transfer and row.transfer.status in FINAL:
            self._tell(row.transfer)
        else:  # what cannot be read in the listing may be by itself
            self.outstanding[row.id] = row.sent or 0.0

    def _remember(self, newest: Sequence[Row], now: float) -> None:
        before = self._since, self._recent
        # What a listing does not show is not gone from the next.
        listed = {row.id: row.sent or 0.0 for row in newest}
        known = listed | {one: at for one, at in self._recent.items() if one not in listed}
        self._recent = dict(islice(known.items(), WINDOW))
        # A time to come is no time of a send: what is sent until then would be overlooked.
        self._since = max((at for at in self._recent.values() if at <= now), default=self._since or 0.0)
        self._is_changed |= before != (self._since, self._recent)

    def take(self) -> tuple[list[Transfer], dict[str, Any] | None]:
        """The ends that nobody was told of yet, and what to keep once they are told; None where that is as before."""
        ended, self._ended = self._ended, []
        state = {"since": self._since, "outstanding": dict(self.outstanding), "recent": dict(self._recent)}
        has_news, self._is_changed = self.has_news, False
        return ended, state if has_news else None

    def _tell(self, transfer: Transfer) -> None:
        self._ended.append(transfer)
        self._is_changed = True


def _read(state: Any) -> _State | None:
    try:
        return msgspec.convert(state, _State | None)
    except msgspec.ValidationError as error:
        log.warning("What this watcher knew cannot be read, and it begins anew: %s", error)
        return None
