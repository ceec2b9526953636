"""The row of a delivery: its memory, its fence, and the columns that the page shows.

Each write compares the version that it has read and raises it, so two processes never overwrite each other: the second
one reads again, and decides again. :meth:`Row.claim` is the fence: from then on, no earlier attempt can store anything
of the draft, so none begins a send.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from outbound_transfer.client.errors import AlreadyDelivered, DraftChanged, WrongTransfer
from outbound_transfer.client.models import Transfer, identity_of
from outbound_transfer.delivery.attempt import Attempt, StaleTry, Task, TaskTry, task_name, task_of
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.files.attached import Held
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.errors import DeliveriesUnavailable
from outbound_transfer.store.rows import ASKED, Kept, Stored

Keep: TypeAlias = Callable[["Memory"], "Memory | None"]  # returns what to keep of a memory; see Row.put()

_MAX_CLAIMANTS: Final = 20  # whose newest attempt a row keeps: tasks of any run may claim the row of a delivery key

APPROVED, REJECTED = "approved", "rejected"

AGAIN: Final = "Nothing is sent. Clear the task that creates the draft, and all tasks after it."


class Entry(msgspec.Struct, frozen=True):
    """The files that one task (and map index) has attached."""

    claim: int = 0  # of the attempt that changed it last
    is_open: bool = True  # its files are being changed; nothing is sent meanwhile
    files: dict[str, Held | None] = {}  # None: an upload of the name has begun


class Approval(msgspec.Struct, frozen=True):
    """Whether a person approves what the draft holds."""

    asked: tuple[str, str, int] = ("", "", 0)  # TaskTry.asked; empty if nobody is asked now
    state: str = ""  # approved or rejected; "" before there is an answer
    shown: str = ""  # Memory.shown() of the files that the answer is about
    by: str = ""  # name of the Airflow user who answered
    at: str = ""  # ISO 8601

    @property
    def is_waiting(self) -> bool:
        """Whether a task asks a person now."""
        return bool(self.asked[0]) and not self.state


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory in a row. It contains no secrets, and no personal data in clear text."""

    claim: int = 0  # counts the claims; only the newest claimant writes what is not an entry
    owner: str = ""  # the task instance that has claimed it last
    tries: dict[str, tuple[str, int]] = {}  # run start and try number of the newest attempt, by task instance
    phase: Phase = Phase.EMPTY
    transfer_id: str = ""
    account: str = ""
    salt: str = ""  # of the three digests below
    key_check: str = ""  # of the API key that created the draft
    input: dict[str, str] = {}  # of each argument of the draft, except phone numbers, answer and files
    identity: str = ""  # of the subject and the addresses that the service shows
    item: str = ""  # digest of the same, the same in all tasks of a run
    asked: tuple[str, str, int] = ("", "", 0)  # TaskTry.asked of the attempt that made the draft
    clear_number: int = 0  # of the run, of that attempt
    key: str = ""  # of the row of this task's delivery key; "" if it delivers without one
    security: str = ""  # the option of the draft, which the service does not return
    is_rehearsal: bool = False  # the draft is never sent, wherever the connection leads by then
    chosen: Sequence[str] = ()  # digests of the addresses to which a transfer is delivered again
    siblings: Sequence[str] = ()  # keys of other rows that are meant to deliver the same: no twins
    approval: Approval | None = None  # None: the send needs none
    entries: dict[str, Entry] = {}  # by task instance; "" if the task that makes the draft attaches its files
    wait: tuple[str, str] = ("", "")  # when a wait of the task times out, and TaskTry.asked

    def emptied(self) -> Memory:
        """Return it without its draft. Tasks that attached or approved must do so again: empty entries stay."""
        names = ("claim", "owner", "tries", "key", "is_rehearsal", "chosen", "wait")
        entries = {who: Entry(entry.claim) for who, entry in self.entries.items() if who}
        kept = {name: getattr(self, name) for name in names}
        return Memory(**kept, approval=self.approval and Approval(), entries=entries)

    @property
    def is_erased(self) -> bool:
        """Whether a draft or transfer is known by its id alone."""
        return bool(self.transfer_id) and not self.identity

    @property
    def held(self) -> dict[str, Held]:
        """The files that were attached, by name."""
        return {name: held for entry in self.entries.values() for name, held in entry.files.items() if held}

    def files(self) -> dict[str, str] | None:
        """Return the ids of the files that the draft must hold, by name; None while an entry is open."""
        if any(entry.is_open for entry in self.entries.values()):
            return None
        return {name: held.id for name, held in self.held.items()}

    def shown(self) -> str:
        """Return twelve digits that stand for the files of the draft, by their names, ids and bytes."""
        digests = {name: held.digest for name, held in self.held.items()}
        return hash_of(self.transfer_id, self.files(), digests)[:12]

    @property
    def is_approved(self) -> bool:
        """Whether a person has approved the files of the draft."""
        return bool(self.approval and self.approval.state == APPROVED and self.approval.shown == self.shown())

    def twin(self) -> str:
        """Return what a twin has in common with it: run, subject, addresses, and names and bytes of the files."""
        if self.is_erased:
            return self.item
        return hash_of(self.item, sorted((name, held.size, held.digest) for name, held in self.held.items()))


class Row:
    """The row of a task instance's delivery, or of a delivery key's, as one attempt reads and writes it."""

    def __init__(self, rows: Deliveries, key: str, delivery_key: str = "", *, is_keyed: bool = False) -> None:
        self.rows, self.key, self.delivery_key = rows, key, delivery_key
        self.is_keyed = is_keyed or bool(delivery_key)  # its delivery key is not known to each task that shares it
        self.memory = Memory()  # as it was last read or written here
        self.claim_number = 0  # of this attempt; a process that continues it after a deferral resumes with it

    @classmethod
    def of_task(cls, rows: Deliveries, task: Task) -> Row:
        return cls(rows, hash_of("task", *task))

    def read(self) -> tuple[int, Memory]:
        """Return the version and the memory; 0 and an empty one if there is no row."""
        version, text = self.rows.read(self.key)
        try:
            self.memory = msgspec.json.decode(text, type=Memory) if version else Memory()
        except msgspec.MsgspecError as error:
            raise DeliveriesUnavailable(
                f"The row of this delivery cannot be read: {error}. Nothing is sent. Run one version of the provider"
            ) from None
        return version, self.memory

    def put(self, version: int, memory: Memory, kept: Memory | None = None, error: str = "") -> bool:
        """Store the memory if the row still has this version, and a copy to keep for the page, with this error."""
        copy = Kept(hash_of(self.key, kept.transfer_id), self._stored(kept, ""), error) if kept else None
        is_stored = self.rows.put(self.key, version, self._stored(memory, memory.twin()), copy)
        self.memory = memory if is_stored else self.memory
        return is_stored

    def _stored(self, memory: Memory, twin: str) -> Stored:
        started, try_number = memory.tries.get(memory.owner, ("", 0))
        is_asked = memory.phase is Phase.HANDED_ON and memory.approval and memory.approval.is_waiting
        # The page shows the row of the delivery key instead, and no row that has a deadline alone.
        task = ("", "", "", -1) if memory.key or not memory.owner else task_of(memory.owner)
        return Stored(
            self.is_keyed,
            memory.account,
            memory.transfer_id,
            ASKED if is_asked else memory.phase.value,
            twin,
            started,
            msgspec.json.encode(memory).decode(),
            *task,
            try_number,
            memory.is_rehearsal,
            memory.security,
        )

    def change(self, change: Callable[[Memory], Memory], keep: Keep = lambda _: None, error: str = "") -> Memory:
        """Read, change and store the memory, again if somebody else has changed it meanwhile; see :meth:`put`."""
        while True:
            version, memory = self.read()
            if self.put(version, changed := change(memory), keep(memory), error):
                return changed

    def claim(self, by: TaskTry, check: Callable[[Memory], object] = lambda _: None, *, is_own: bool = False) -> Memory:
        """Begin an attempt. From now on, no earlier one can store anything of the draft.

        :param check: raises an error if the row must not be claimed.
        :param is_own: the row is the task instance's own: if its run was created again, it starts empty.
        """
        name = task_name(by.task)

        def of_deleted_run(memory: Memory) -> Memory | None:
            started = memory.tries.get(name, ("", 0))[0]
            is_fresh = by.try_number == 1 and not by.clear_number  # with which a deleted task instance begins, too
            return memory if is_own and is_fresh and "" < started < by.run_started_at else None

        def claimed(memory: Memory) -> Memory:
            check(memory)
            if of_deleted_run(memory):
                memory = Memory(memory.claim)
            by.check_newest(*memory.tries.get(name, ("", 0)))
            others = [each for each in memory.tries.items() if each[0] != name][1 - _MAX_CLAIMANTS :]
            tries = dict([*others, (name, (by.run_started_at, by.try_number))])
            return replace(memory, claim=memory.claim + 1, owner=name, tries=tries)

        self.claim_number = self.change(claimed, of_deleted_run).claim  # its draft may have been sent
        return self.memory

    def resume(self, claim: int) -> None:
        """Continue the attempt that has made this claim, unless another one has begun."""
        self.claim_number = claim
        self.check_own(self.read()[1])

    def check_own(self, memory: Memory) -> None:
        """:raises StaleTry: another attempt has claimed the row."""
        if memory.claim != self.claim_number:
            raise StaleTry(
                "Another attempt of this delivery has begun, or its row was deleted: this one stops and sends nothing"
            )

    def save(self, change: Callable[[Memory], Memory] = lambda memory: memory, **fields: Any) -> Memory:
        """Change the memory as the newest claimant."""

        def saved(memory: Memory) -> Memory:
            self.check_own(memory)
            return replace(change(memory), **fields)

        return self.change(saved)

    def require_no_twin(self, attempt: Attempt) -> None:
        """:raises AlreadyDelivered: another task or index of the run sends or has sent the same."""
        if self.is_keyed or not attempt.may_have_twins:
            return
        # In a run that was cleared, other tasks may have sent before it was started again.
        started = "" if attempt.by.clear_number else attempt.by.run_started_at
        if twin := self.rows.find_twin([self.key, *self.memory.siblings], self.memory.twin(), started):
            raise AlreadyDelivered(
                f"Transfer {twin}, which another task or index of this run has sent or may have sent, has the same "
                "subject, recipients and files. Nothing is sent. If this is a separate delivery, give each of them a "
                "delivery_key, or trigger a new Dag run"
            )


def find_row(rows: Deliveries, account: str, transfer_id: str) -> Row | None:
    """Return the row of a transfer, None if there is none; an error if it was made in another account."""
    found = rows.find(transfer_id)
    own = [Row(rows, key, is_keyed=is_keyed) for key, then, is_keyed in found if then == account]
    if found and not own:
        raise WrongTransfer(
            f"The connection leads to {account}, but transfer {transfer_id} was created in {found[0][1]}. Nothing is "
            "done here. Correct the connection."
        )
    return own[0] if own else None


def require_row(rows: Deliveries, account: str, transfer_id: str) -> Row:
    """Return the row of a draft, as :func:`find_row`; an error if there is none."""
    if row := find_row(rows, account, transfer_id):
        return row
    raise WrongTransfer(
        f"No delivery knows the id {transfer_id}: its draft was replaced or deleted; or it was created outside this "
        f"Airflow, and only the hook's methods can attach to it and send it. {AGAIN}"
    )


def read_memory(rows: Deliveries, task: Task) -> Memory:
    """Return what the delivery of a task instance remembers, under its delivery key if it has one."""
    memory = Row.of_task(rows, task).read()[1]
    return Row(rows, memory.key).read()[1] if memory.key else memory


def require_draft(memory: Memory, transfer_id: str, *phases: Phase) -> None:
    """:raises DraftChanged: the row is no longer about this draft, or in none of these phases."""
    if memory.transfer_id != transfer_id or memory.phase not in phases:
        raise DraftChanged(f"Draft {transfer_id} was replaced or deleted, or is being filled or deleted. {AGAIN}")


def is_of(memory: Memory, transfer: Transfer) -> bool:
    """Return whether a transfer has the id, subject and recipients of the row's draft: an id alone proves nothing."""
    is_meant = memory.is_erased or memory.identity == hash_of(memory.salt, identity_of(transfer))
    return transfer.id == memory.transfer_id and is_meant


def hash_of(*parts: Any) -> str:
    """Return the SHA-256 of anything that JSON can represent, in hexadecimal."""
    # json, not msgspec: it escapes invalid Unicode, such as a file name in another encoding.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
