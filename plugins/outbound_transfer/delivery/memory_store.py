"""Where the memory of a delivery is kept: Airflow's task state store, or a row of a table. Both are fenced.

Fenced: once a later try has begun, an earlier one can store nothing that counts, and is told so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from outbound_transfer.airflow_compat.names import NEVER_EXPIRE
from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.memory import Memory
from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.protocol.models import to_builtins
from outbound_transfer.warehouse.config import get_option, require_memory_place
from outbound_transfer.warehouse.memory_table import MemoryRow

if TYPE_CHECKING:
    from airflow.sdk import Context

_KEY: Final = "outbound_transfer_delivery"


class StateStore(Protocol):
    """The part of Airflow's task state store that is used."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any, *, retention: Any = None) -> None: ...


class StateLost(OutboundTransferError):
    """The task's memory is not what was stored, or a later try has begun. A retry may succeed.

    What to do: check Airflow's API server and the backend of its state store. Retried; nothing was created. If a later
    try has begun, it delivers. Of a task instance that was deleted through the API, clear the task until its try number
    is as high as the message says.
    """


class Remembered(NamedTuple):
    """What a try finds when it begins.

    :ivar memory: of the newest try that has stored one; None if none has.
    :ivar is_complete: False if a try has begun whose memory is missing.
    """

    memory: Memory | None
    is_complete: bool


class MemoryStore(ABC):
    """Keeps the memory of one delivery, for one try.

    :ivar values: other values of the task, in the same place.
    """

    values: StateStore

    @abstractmethod
    def begin(self) -> Remembered:
        """Return what was stored last. From now on, no earlier try can store anything.

        :raises StateLost: a later try has begun.
        """

    @abstractmethod
    def read(self) -> Memory | None:
        """Return what was stored last, without beginning a try."""

    @abstractmethod
    def save(self, memory: Memory) -> None:
        """Store the memory for as long as the run exists.

        :raises StateLost, StaleTry: a later try has begun.
        """

    @abstractmethod
    def check_still_own(self) -> None:
        """Check that no other try has begun, or has claimed the delivery key.

        :raises StateLost, StaleTry: one has.
        """

    def record_sent(self, transfer_id: str) -> None:  # noqa: B027  # of a task instance, others do not wait
        """Store that the delivery was sent, where others wait for it."""

    def save_verified(self, memory: Memory) -> None:
        """Store what this try begins with, and read it back: a store that loses it must be found out first.

        :raises StateLost: it is not returned.
        """
        self.save(memory)
        if self.read() != memory:
            raise StateLost(
                "The task's state store does not return what was just written to it, so nothing was created. Check "
                "Airflow's API server and the state store's backend, or the database of state_conn_id."
            )


class TaskMemoryStore(MemoryStore):
    """Keeps the memory in Airflow's task state store, which has no compare-and-set: each key has one writer.

    A try stores its memory, and that it has begun, under keys of its own number. That a later one has begun is stored
    for each earlier try under a key that only later ones write, so that no late write of an earlier one takes it back.

    :param is_resumed: the try was deferred before, so it has stored something.
    """

    def __init__(self, values: StateStore, try_number: int, *, is_resumed: bool) -> None:
        self.values, self._try_number, self._is_resumed = values, try_number, is_resumed

    def begin(self) -> Remembered:
        self.check_still_own()
        has_begun = self._is_resumed or self._get("begun", self._try_number) is not None
        for earlier in range(self._try_number - 1, 0, -1):
            self._set("later_than", earlier, self._try_number)
            if self._get("begun", earlier) is not None:
                break  # it has done so with those before it
        self._set("begun", self._try_number, True)
        at, memory = self._find()
        return Remembered(memory, at >= self._try_number - (not has_begun))

    def read(self) -> Memory | None:
        return self._find()[1]

    def _find(self) -> tuple[int, Memory | None]:
        """Return the newest memory up to this try's, and the number of the try that stored it; 0 if none has."""
        for number in range(self._try_number, 0, -1):
            if (memory := self._read(number)) is not None:
                return number, memory
        return 0, None

    def save(self, memory: Memory) -> None:
        self.check_still_own()
        self._set("try", self._try_number, to_builtins(memory))

    def check_still_own(self) -> None:
        if (later := self._get("later_than", self._try_number)) is None:
            return
        while (newer := self._get("later_than", int(later))) is not None:
            later = newer
        memory = self._read(int(later))
        is_sent = memory is not None and memory.phase is Phase.SENDING
        sent = f", and sent transfer {memory.draft_id}, or may have" if memory and is_sent else ""
        raise StateLost(
            f"This is try {self._try_number} of the task, and try {later} has begun{sent}: Airflow has given this "
            "try up, or the task instance was deleted and created again. Nothing is sent. In the second case, "
            f"clear the task until its try number is {later} or more."
        )

    def _read(self, try_number: int) -> Memory | None:
        return _decode(self._get("try", try_number))

    def _get(self, what: str, try_number: int) -> Any:
        return self.values.get(f"{_KEY}_{what}_{try_number}", default=None)

    def _set(self, what: str, try_number: int, value: Any) -> None:
        self.values.set(f"{_KEY}_{what}_{try_number}", value, retention=NEVER_EXPIRE)


class RowMemoryStore(MemoryStore):
    """Keeps the memory in a row that this try has claimed.

    :param expected: the newest try of this task that has stored a memory; 0 if none has.
    :param task: its identity, where others may write the row too. The row may be of a backup, and older.
    """

    def __init__(self, row: MemoryRow, *, expected: int = 0, task: str = "") -> None:
        self.values = self.row = row
        self._expected, self._task = expected, task

    def begin(self) -> Remembered:
        memory = self.read()
        if memory is None or memory.writer.task != self._task:
            return Remembered(memory, memory is not None or not self._expected)
        return Remembered(memory, memory.writer.try_number >= self._expected)

    def read(self) -> Memory | None:
        return _decode(self.row.get(_KEY))

    def read_sent(self) -> Memory:
        """Return what was delivered under a key: it changes only if it is sent once more.

        :raises StateLost: it is not there.
        """
        if (memory := self.read()) is None:
            raise StateLost(
                "The delivery key was sent, and what its row remembered of that is lost. Nothing is sent again. "
                "Restore the database of the keys, or give another delivery another key"
            )
        return memory

    def save(self, memory: Memory) -> None:
        self.row.set(_KEY, to_builtins(memory))

    def check_still_own(self) -> None:
        self.row.check_still_owner()

    def record_sent(self, transfer_id: str) -> None:
        if not self.row.is_sent:
            self.row.record_sent(transfer_id)


def _decode(stored: Any) -> Memory | None:
    try:
        return None if stored is None else msgspec.convert(stored, Memory)
    except msgspec.ValidationError as error:
        raise StateLost(f"What an earlier try of this task has stored is invalid: {error}") from None


def state_store(context: Context) -> StateStore:
    """Return what keeps the memory of the running task from try to try.

    Airflow's task state store, where Airflow has one (from 3.3 on) and ``state_conn_id`` is not set; otherwise the
    task's row of the table, which the try has not claimed: see :class:`.MemoryRow`.

    :raises NoMemoryTable: neither is there.
    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    """
    native = context.get("task_state_store")
    if native is not None and not get_option("state_conn_id"):
        return native
    return require_memory_place("Before Airflow 3.3, a delivery or a wait").open().of_task(TaskTry.of(context))


def task_memory(context: Context, *, is_resumed: bool = False, newest_before: int = 0) -> MemoryStore:
    """Return the memory of the running task instance.

    :param is_resumed: the try was deferred before.
    :param newest_before: the newest try that has begun before this process; 0 if none has.
    """
    values = state_store(context)
    if isinstance(values, MemoryRow):
        return RowMemoryStore(values, expected=newest_before)
    return TaskMemoryStore(values, int(context["ti"].try_number), is_resumed=is_resumed)
