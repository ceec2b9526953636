"""Noticing the end of every transfer of a key, each once, however often the process that watches is restarted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from outbound_transfer.polling.schedule import next_look
from outbound_transfer.protocol.models import Transfer, instant_of
from outbound_transfer.protocol.outcomes import FINAL

#: Seconds that a send may take to show up in the listing behind a later one.
OVERLAP: Final = 120.0


class Watch:
    """What one watcher knows of the transfers of a key.

    A transfer that has ended before the watch first looked is never told of.

    :ivar outstanding: the transfers whose end has not been seen, each with when it was sent.
    :ivar interval: seconds between two looks.
    :ivar looked: when the last look began.
    """

    def __init__(self, interval: float, looked: float, state: Mapping[str, Any] | None = None) -> None:
        """
        :param state: what :meth:`take` gave, perhaps to another process.
        """
        self.interval, self.looked = interval, looked
        self.outstanding: dict[str, float] = dict(state["outstanding"]) if state else {}
        self._recent: dict[str, float] = dict(state["recent"]) if state else {}
        self._since: float | None = float(state["since"]) if state else None
        self._ended: list[Transfer] = []
        self._is_changed = False

    @property
    def is_new(self) -> bool:
        """Whether it has yet to learn which transfers are outstanding."""
        return self._since is None

    @property
    def since(self) -> float:
        """Transfers that were sent before it are known."""
        return (self._since or 0.0) - OVERLAP

    @property
    def has_news(self) -> bool:
        """Whether :meth:`take` gives anything."""
        return self._is_changed and not self.is_new

    def due(self, grid: float) -> float:
        return next_look(self.looked, grid, self.interval)

    def see(self, transfer: Transfer) -> None:
        """Take in one transfer as a look has shown it."""
        has_ended = transfer.status in FINAL
        sent = instant_of(transfer.sent_at)
        if transfer.id in self.outstanding:
            if has_ended:
                del self.outstanding[transfer.id]
                self._tell(transfer)
        elif sent is not None and sent >= self.since and transfer.id not in self._recent:
            self._recent[transfer.id] = sent
            self._is_changed = True
            if not has_ended:
                self.outstanding[transfer.id] = sent
            elif not self.is_new:
                self._tell(transfer)

    def forget(self, transfer_ids: Iterable[str]) -> None:
        """The key does not see these any more."""
        for gone in self.outstanding.keys() & set(transfer_ids):
            del self.outstanding[gone]
            self._is_changed = True

    def looked_at_all(self, began: float) -> None:
        """A look that began at ``began`` has shown everything."""
        before = self._since, self._recent
        self.looked = began
        self._since = max(self._recent.values(), default=self._since or 0.0)
        self._recent = {one: sent for one, sent in self._recent.items() if sent >= self.since}
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
