"""Tasks that share worker slots and one clock: a task holds a slot while it runs, none while it is deferred."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outbound_transfer_sandbox.testing import Sandbox
from support.tasks import FakeTaskInstance, SharedSimulatedClock


class SlottedClock(SharedSimulatedClock):
    """One clock for all tasks, and the slots of those that run.

    :ivar starts: how often a task has got a slot.
    """

    def __init__(self, sandbox: Sandbox, tasks: int, slots: int) -> None:
        super().__init__(sandbox, tasks)
        self._free, self._queue = slots, deque[threading.Event]()
        self.starts = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        self.take_slot()
        try:
            yield
        finally:
            self.release_slot()

    def take_slot(self) -> None:
        with self._changed:
            self.starts += 1
            if self._free:
                self._free -= 1
                return
            is_mine = threading.Event()
            self._queue.append(is_mine)
            self._rest()
        is_mine.wait()

    def release_slot(self) -> None:
        with self._changed:
            if self._queue:
                self._awake += 1
                self._queue.popleft().set()
            else:
                self._free += 1


@dataclass
class SlottedTask(FakeTaskInstance):
    """A task that frees its slot while it is deferred."""

    time: SlottedClock

    def _fire(self, trigger: Any) -> Any:
        self.time.release_slot()
        try:
            return super()._fire(trigger)
        finally:
            self.time.take_slot()
