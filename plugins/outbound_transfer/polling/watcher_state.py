"""Where a watcher keeps its state, from which the next triggerer continues."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from outbound_transfer.airflow_compat.lookups import call_airflow
from outbound_transfer.airflow_compat.task_try import TaskTry

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors

    from outbound_transfer.polling.poller import PollUpdate
    from outbound_transfer.warehouse.config import MemoryPlace
    from outbound_transfer.warehouse.memory_table import MemoryRow

log = logging.getLogger(__name__)

#: Key of a watcher's state.
WATCHER_STATE_KEY: Final = "outbound_transfer_watcher"

#: Seconds from an event to the write of the state behind it, if Airflow does not say when it has stored the event. It
#: does so every second.
SAVE_DELAY_SECONDS: Final = 15.0

#: Seconds after a failed read.
RETRY_SECONDS: Final = 60.0


class WatcherState(Protocol):
    """Keeps the state of one watcher."""

    async def load(self) -> Any:
        """Return what was saved last; None if there is nothing."""

    def save(self, update: PollUpdate, state: Any, *, has_event: bool) -> None:
        """Save a state once the events that follow from ``update`` are stored.

        :param has_event: whether there is one of this watcher.
        """

    def close(self) -> None:
        """Drop what is not saved yet."""


class AssetState:
    """Keeps the state in Airflow's asset state store.

    :param store: the store of the trigger's asset.
    """

    def __init__(self, store: AssetStateStoreAccessors) -> None:
        self._store = store

    async def load(self) -> Any:
        """Return what was saved last; None if there is nothing.

        :raises ValueError: several assets share the trigger.
        """
        return await call_airflow(partial(self._store.get, WATCHER_STATE_KEY))

    def save(self, update: PollUpdate, state: Any, *, has_event: bool) -> None:  # noqa: ARG002  # nothing is stored later
        update.on_stored.append(partial(call_airflow, partial(self._store.set, WATCHER_STATE_KEY, state)))

    def close(self) -> None:
        pass


class TableState:
    """Keeps the state in the table of memory, as Airflow has no store for it before 3.3.

    :param memory_place: the table's.
    :param arguments: of the trigger. Airflow runs one trigger for all watchers with the same ones.
    """

    def __init__(self, memory_place: MemoryPlace, arguments: dict[str, Any]) -> None:
        self._place = memory_place
        digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        self._row = TaskTry(WATCHER_STATE_KEY, digest, "watcher", -1, 1, "", is_fresh=False)
        self._saves: set[asyncio.Task[None]] = set()
        self._not_before = 0.0
        self._numbers = itertools.count(1)
        self._saved = 0
        self._lock = asyncio.Lock()

    async def load(self) -> Any:
        """Return what was saved last; None if there is nothing. Wait for a database that does not respond."""
        while True:
            try:
                return await call_airflow(lambda: self._open().get(WATCHER_STATE_KEY))
            except Exception as error:
                log.warning(
                    "Could not read a watcher's state from %s; it is read again in %d seconds: %s",
                    self._place,
                    RETRY_SECONDS,
                    error,
                )
            await asyncio.sleep(RETRY_SECONDS)

    def save(self, update: PollUpdate, state: Any, *, has_event: bool) -> None:  # noqa: ARG002  # nobody confirms it
        loop = asyncio.get_running_loop()
        if has_event:
            self._not_before = loop.time() + SAVE_DELAY_SECONDS
        task = loop.create_task(self._save_later(next(self._numbers), state, self._not_before - loop.time()))
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    def close(self) -> None:
        for task in self._saves:
            task.cancel()

    async def _save_later(self, number: int, state: Any, delay: float) -> None:
        await asyncio.sleep(delay)
        async with self._lock:
            if number < self._saved:  # a later state includes this one
                return
            try:
                await call_airflow(lambda: self._open().set(WATCHER_STATE_KEY, state))
                self._saved = number
            except Exception as error:  # a later state includes this one
                log.warning("Could not save a watcher's state in %s: %s", self._place, error)

    def _open(self) -> MemoryRow:
        return self._place.open().of_task(self._row)
