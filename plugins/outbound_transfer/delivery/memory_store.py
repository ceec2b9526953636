"""Where the memory of a delivery is kept: Airflow's task state store, or a row of a table. Both are fenced.

Fenced: once a later try has begun, an earlier one can neither read nor write. Airflow's API server refuses a try whose
task instance has a newer one; the row compares the number of its last claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.memory import Memory
from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.protocol.models import to_builtins

if TYPE_CHECKING:
    from outbound_transfer.warehouse.memory_table import MemoryRow

_KEY: Final = "outbound_transfer_delivery"

#: Key of the number of the newest try that has begun.
_NEWEST_KEY: Final = f"{_KEY}_newest"


class StateStore(Protocol):
    """The part of Airflow's task state store that is used."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any, *, retention: Any = None) -> None: ...


class StateLost(OutboundTransferError):
    """The task's memory is not what was stored, or a later try has begun. A retry may succeed."""


class Remembered(NamedTuple):
    """What a try finds when it begins.

    :ivar memory: of the newest try that has stored one; None if none has.
    :ivar is_complete: False if a try has begun whose memory is missing.
    """

    memory: Memory | None
    is_complete: bool


class MemoryStore(Protocol):
    """Keeps the memory of one delivery, for one try."""

    @property
    def values(self) -> StateStore:
        """Other values of the task, in the same place."""

    def begin(self) -> Remembered:
        """Return what was stored last. From now on, no earlier try can store anything.

        :raises StateLost: a later try has begun.
        """

    def read(self) -> Memory | None:
        """Return what was stored last, without beginning a try."""

    def save_verified(self, memory: Memory) -> None:
        """Store what this try begins with, and read it back: a store that loses it must be found out first.

        :raises StateLost: it is not returned.
        """

    def save(self, memory: Memory) -> None:
        """Store the memory for as long as the run exists.

        :raises StateLost: a later try has begun.
        """

    def check_still_own(self) -> None:
        """Check that no other try has begun, or has claimed the delivery key.

        :raises StateLost, StaleTry: one has.
        """

    def record_sent(self, transfer_id: str) -> None:
        """Store that the delivery was sent, where others wait for it."""


class TaskMemoryStore:
    """Keeps the memory in Airflow's task state store, for each try under a key of its own.

    A backend in object storage writes an object before Airflow can refuse the try, which must not be a later try's.

    :param is_resumed: the try was deferred before, so it has stored something.
    """

    def __init__(self, values: StateStore, try_number: int, *, is_resumed: bool) -> None:
        self.values, self._try_number = values, try_number
        self._expected = try_number if is_resumed else try_number - 1

    def begin(self) -> Remembered:
        expected = max(self._check_newest(), self._expected)
        self.values.set(_NEWEST_KEY, self._try_number, retention=_never_expire())
        at, memory = self._find()
        return Remembered(memory, at >= expected)

    def read(self) -> Memory | None:
        return self._find()[1]

    def _find(self) -> tuple[int, Memory | None]:
        """Return the newest memory up to this try's, and the number of the try that stored it; 0 if none has."""
        for number in range(self._try_number, 0, -1):
            if (memory := self._read(number)) is not None:
                return number, memory
        return 0, None

    def save_verified(self, memory: Memory) -> None:
        self.save(memory)
        if self._read(self._try_number) != memory:
            raise StateLost(_NOT_STORED)

    def save(self, memory: Memory) -> None:
        self._check_newest()
        self.values.set(f"{_KEY}_try_{self._try_number}", to_builtins(memory), retention=_never_expire())

    def check_still_own(self) -> None:
        self._check_newest()

    def record_sent(self, transfer_id: str) -> None:
        pass

    def _read(self, try_number: int) -> Memory | None:
        return _decode(self.values.get(f"{_KEY}_try_{try_number}", default=None))

    def _check_newest(self) -> int:
        stored = self.values.get(_NEWEST_KEY, default=None)
        newest = stored if isinstance(stored, int) else 0
        if newest > self._try_number:
            memory = self._read(newest)
            is_sent = memory is not None and memory.phase is Phase.SENDING
            sent = f", and sent transfer {memory.draft_id}, or may have" if memory and is_sent else ""
            raise StateLost(
                f"This is try {self._try_number} of the task, and try {newest} has begun{sent}: Airflow has given this "
                "try up, or the task instance was deleted and created again. Nothing is sent. In the second case, "
                f"clear the task until its try number is {newest} or more."
            )
        return newest


class RowMemoryStore:
    """Keeps the memory in a row that this try has claimed.

    :param is_expected: an earlier try, or this one before it was deferred, has stored a memory.
    """

    def __init__(self, row: MemoryRow, *, is_expected: bool) -> None:
        self.values, self._row, self._is_expected = row, row, is_expected

    def begin(self) -> Remembered:
        memory = self.read()
        return Remembered(memory, memory is not None or not self._is_expected)

    def read(self) -> Memory | None:
        return _decode(self._row.get(_KEY))

    def save_verified(self, memory: Memory) -> None:
        self.save(memory)
        if self.read() != memory:
            raise StateLost(_NOT_STORED)

    def save(self, memory: Memory) -> None:
        self._row.set(_KEY, to_builtins(memory))

    def check_still_own(self) -> None:
        self._row.check_still_owner()

    def record_sent(self, transfer_id: str) -> None:
        if not self._row.is_sent:
            self._row.record_sent(transfer_id)


_NOT_STORED: Final = (
    "The task's state store does not return what was just written to it, so nothing was created. Check Airflow's API "
    "server and the state store's backend, or the database of state_conn_id."
)


def _decode(stored: Any) -> Memory | None:
    try:
        return None if stored is None else msgspec.convert(stored, Memory)
    except msgspec.ValidationError as error:
        raise StateLost(f"What an earlier try of this task has stored is invalid: {error}") from None


def _never_expire() -> Any:
    from outbound_transfer.airflow_compat.names import NEVER_EXPIRE

    return NEVER_EXPIRE
