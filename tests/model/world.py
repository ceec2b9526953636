"""The state of the world that the model explores: Airflow, what is remembered, the service and the network.

Everything is immutable and interned, so that two worlds are compared by the identity of their parts. What a delivery
remembers is the production's :class:`.Memory`.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from outbound_transfer.delivery.memory import (
    InputDigests,
    Memory,
    Scope,
    scope_of,
)
from outbound_transfer.protocol.models import NewRecipient, NewTransfer

T = TypeVar("T", bound=tuple[Any, ...])

_INTERNED: Final[dict[Hashable, Any]] = {}


def intern(value: T) -> T:
    """Return the one object that stands for all named tuples of this class and content."""
    return _INTERNED.setdefault((type(value), *value), value)


def _by_identity(cls: type[T]) -> type[T]:
    """Let instances compare and hash by identity: each is interned, so that it stands for its content."""
    cls.__hash__ = object.__hash__  # type: ignore[method-assign,assignment]
    cls.__eq__ = object.__eq__  # type: ignore[method-assign,assignment]
    cls.__ne__ = object.__ne__  # type: ignore[method-assign,assignment]
    return cls


# What is delivered, and where.

#: Who gets an item, for a search that compares people: "x" is X after a file of it has changed, V and W are others.
PEOPLE: Final = {"X": "p", "Y": "q", "x": "p", "Z": "r", "V": "p", "W": "p"}

#: As what an item counts, that a changed file has made another.
DELIVERY: Final = {**{item: item for item in PEOPLE}, "x": "X"}

#: The names and sizes of its files: those of W are X's, with other bytes.
SIZES: Final = {**{item: item for item in PEOPLE}, "W": "X"}


class Connection(NamedTuple):
    """Where a connection leads: the account, the user of its key, and the key."""

    account: str
    user: str
    key: str


#: The connection as it is at first, and what it may be changed to.
CONNECTIONS: Final = {
    "first": Connection("a", "ann", "key-of-ann"),
    "new key": Connection("a", "ann", "new-key-of-ann"),
    "other user": Connection("a", "bob", "key-of-bob"),
    "other account": Connection("b", "ann", "key-in-b"),
}


@cache
def scope(connection: str, delivery_key: str = "") -> Scope:
    there = CONNECTIONS[connection]
    return scope_of(there.account, there.key, delivery_key)


@cache
def new_transfer(item: str, *, is_shared: bool = False) -> NewTransfer:
    """Return what a task is asked to deliver. Each has a secret, which only the connection's key can compare.

    :param is_shared: it creates a draft for other tasks, and does not know the files.
    """
    people = PEOPLE[item]
    files = people if is_shared else item  # items of the same people differ in them alone
    return NewTransfer(f"for {people}", (NewRecipient(f"{people}@example.com"),), message=files, security_answer=files)


@cache
def input_of(item: str, connection: str, *, is_shared: bool = False) -> InputDigests:
    return InputDigests.of(new_transfer(item, is_shared=is_shared), None, CONNECTIONS[connection].key)


# What is remembered.

_NUMBERS: Final[dict[bytes, int]] = {}
MEMORIES: Final[list[Memory]] = []


def remember(memory: Memory) -> int:
    """Return the number of a memory: its dictionaries cannot be hashed."""
    number = _NUMBERS.setdefault(msgspec.msgpack.encode(memory), len(MEMORIES))
    if number == len(MEMORIES):
        MEMORIES.append(memory)
    return number


@_by_identity
class Store(NamedTuple):
    """Where one delivery is remembered: of a task instance, or of a delivery key.

    :ivar claim: number of the newest try that has begun, or of the last claim of a key.
    :ivar records: of the newest tries, the newest last: the number of the try, and its memory's.
    :ivar owner: the task that has claimed the key last; -1 if none has.
    :ivar is_sent: whether the delivery of the key was sent: it never changes again.
    """

    claim: int = 0
    records: tuple[tuple[int, int], ...] = ()
    owner: int = -1
    is_sent: bool = False


# Airflow.

#: What a task that creates a draft returns; see :class:`Slot`.
Published: TypeAlias = tuple[int, str, str]


@_by_identity
class Slot(NamedTuple):
    """A task instance.

    :ivar item: what its input is now.
    :ivar tries: number of its newest try.
    :ivar cleared: how often it was cleared.
    :ivar state: new, queued, running, deferred, failed (Airflow retries it), refused or success.
    :ivar result: the transfer that it returned.
    :ivar named: the transfer that its last refusal names; "" if it names none.
    :ivar key: its delivery key; "" if it has none.
    :ivar published: what a task that creates the draft has returned: transfer, item, and how alike a sent transfer
        must be to stop the send.
    :ivar attached: the file that a task which attaches it has returned.
    """

    item: str
    tries: int = 0
    cleared: int = 0
    state: str = "new"
    result: int = -1
    named: str = ""
    key: str = ""
    published: Published | None = None
    attached: str = ""


@_by_identity
class Run(NamedTuple):
    """What all tasks of the DAG run see.

    :ivar clear_number: how often something in the run was cleared.
    :ivar connection: where the connection leads.
    :ivar has_other_tasks: whether the run has tasks that its DAG no longer has.
    :ivar has_picked_up: whether the recipient of a redelivery has picked up the first transfer.
    :ivar is_clock_behind: whether the service's clock shows times before the run, so that searches end too soon.
    """

    clear_number: int = 0
    connection: str = "first"
    has_other_tasks: bool = False
    has_picked_up: bool = False
    is_clock_behind: bool = False


@_by_identity
class Context(NamedTuple):
    """What Airflow and the DAG say to a try when it starts."""

    slot: int
    number: int
    item: str
    max_tries: int
    clear_number: int
    connection: str
    key: str
    is_resumed: bool
    has_other_tasks: bool
    published: Published | None = None
    attached: str = ""


@_by_identity
class Process(NamedTuple):
    """A process that runs, or has run, a try.

    :ivar next: what it does next.
    :ivar step: PREPARE or SEND; see :class:`.Step`.
    :ivar mode: deliver, or settle: make sure that nothing can be sent any more of what it has begun elsewhere.
    :ivar store: where its delivery is remembered.
    :ivar claim: the number of its claim there.
    :ivar memory: what it remembers.
    :ivar own: what its task's own memory said when it began.
    :ivar is_complete: whether it has found the memory of the newest try before it.
    :ivar is_elsewhere: whether its like may have been sent where its connection does not lead.
    :ivar by_id, search, outdated, wanted: the evidence that it has gathered.
    :ivar found: the transfer that a search has found.
    :ivar is_writer: whether it has created the draft, or has taken it over.
    :ivar is_again: whether it has waited since its first attempt at the send, or was deferred.
    :ivar is_late: whether it has waited since it has asked what must hold for the send.
    :ivar in_doubt: whether an attempt at the send may still be applied.
    :ivar then: what follows once its draft is discarded.
    :ivar question: the question that it has left open under another delivery key.
    """

    context: Context
    next: str = "begin"
    step: str = "PREPARE"
    mode: str = "deliver"
    store: int = -1
    claim: int = 0
    memory: int = -1
    own: int = -1
    is_complete: bool = True
    is_elsewhere: bool = False
    by_id: str = "NOT_RETRIEVED"
    search: str = "NOT_SEARCHED"
    outdated: str = "NO"
    wanted: str = "OPEN"
    found: int = -1
    is_writer: bool = False
    is_again: bool = False
    is_late: bool = False
    in_doubt: bool = False
    then: str = ""
    question: str = ""


# The service.


@_by_identity
class Transfer(NamedTuple):
    """A transfer at the service.

    :ivar status: draft, sent, hidden (sent, and deleted in the web application), gone (it was never
        sent), or discarded (the same, and the task that has removed it says so).
    :ivar maker: the slot that has made it; -1 if another run has, -2 if a stranger.
    :ivar writer: the try that may write to it: its maker, or one that has taken it over.
    :ivar content: "" (nothing), whole, or mixed: somebody else than its writer has changed it.
    :ivar meant: of a draft that tasks share, what the task that attaches the file has returned.
    :ivar key: the delivery key that it was made under.
    :ivar is_outdated: made before somebody picked up the first transfer, for a redelivery.
    :ivar is_heard: whether a try has heard that it was sent, and has stored that if it does.
    :ivar after: how many transfers were sent before it: a listing begins with the newest.
    """

    item: str
    connection: str
    status: str
    maker: int
    writer: tuple[int, int] = (-1, 0)
    content: str = ""
    meant: str = ""
    key: str = ""
    is_outdated: bool = False
    is_heard: bool = False
    after: int = 0


#: What is left of a draft that was removed.
GONE: Final = intern(Transfer("", "first", "gone", -1))


class World(NamedTuple):
    """Everything.

    :ivar stores: of each slot, then of each delivery key.
    :ivar messages: calls of processes that are gone, which the service has not received yet: the call, the
        transfer, and the file.
    :ivar used: how often each trouble has come, in the order of the scenario.
    :ivar broken: the promise that was broken; "" if none was.
    """

    slots: tuple[Slot, ...]
    stores: tuple[Store, ...]
    processes: tuple[Process, ...]
    transfers: tuple[Transfer, ...]
    messages: tuple[tuple[str, int, str], ...]
    run: Run
    used: tuple[int, ...]
    broken: str = ""


class Event(NamedTuple):
    """One thing that happens.

    :ivar who: slot and number of the try; "" if it is not a try that does it.
    :ivar what: the call or the trouble.
    :ivar detail: what it shows, or affects.
    """

    who: tuple[int, int] | None
    what: str
    detail: str = ""

    def __str__(self) -> str:
        who = f"task {self.who[0]}, try {self.who[1]}: " if self.who else ""
        return f"{who}{self.what}" + (f" ({self.detail})" if self.detail else "")


def replaced(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def without(values: tuple[T, ...], index: int) -> tuple[T, ...]:
    return (*values[:index], *values[index + 1 :])


def change(value: T, **changes: Any) -> T:
    """Return the interned value with some fields changed."""
    return intern(value._replace(**changes))  # type: ignore[attr-defined]
