"""The row of a delivery: its memory, its fence, and what the page shows.

Each write compares the version that it has read and raises it, so two processes never overwrite each other: the second
one reads again, and decides again. :meth:`Row.claim` is the fence: from then on, no earlier attempt can store anything
of the draft, so none begins a send.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec
from airflow.sdk import Context
from msgspec.structs import replace

from outbound_transfer.client.errors import DraftChanged, WrongTransfer
from outbound_transfer.delivery.attempt import StaleTry, Task, TaskTry, read_clears, task_name, task_of
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.place import open_rows
from outbound_transfer.files.attached import Held
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.errors import DeliveriesUnavailable
from outbound_transfer.store.rows import ASKED, Kept, Stored

#: Task instances whose newest attempt a row keeps. Tasks of any run may claim the row of a delivery key.
_MAX_CLAIMANTS: Final = 20

AGAIN: Final = "Nothing is sent. Clear the task that creates the draft, and all tasks after it."

#: Returns what to keep of a memory that is to be changed.
Keep: TypeAlias = Callable[["Memory"], "Memory | None"]


class Entry(msgspec.Struct, frozen=True):
    """What one task (and map index) has attached.

    :ivar claim: of the attempt that changed it last.
    :ivar is_open: its files are being changed; nothing is sent meanwhile.
    :ivar files: by name; None if an upload of it has begun.
    """

    claim: int = 0
    is_open: bool = True
    files: dict[str, Held | None] = {}


class Approval(msgspec.Struct, frozen=True):
    """Whether a person approves what the draft holds.

    :ivar asked: since when the task asks; see :attr:`.Attempt.asked_since_clear`. Without it, nobody is asked now.
    :ivar state: approved or rejected; "" before there is an answer.
    :ivar shown: stands for the files that the answer is about; see :meth:`Memory.shown`.
    :ivar by: name of the Airflow user who answered.
    :ivar at: when, ISO 8601.
    """

    asked: tuple[str, str, int, int] = ("", "", 0, 0)
    state: str = ""
    shown: str = ""
    by: str = ""
    at: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether a task asks a person now."""
        return bool(self.asked[0]) and not self.state


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the row remembers. No secret is in it, and no person in clear.

    :ivar claim: counts the claims; only the newest claimant writes what is not an entry.
    :ivar owner: the task instance that has claimed it last.
    :ivar tries: the start of the run and the try number of the newest attempt, by task instance.
    :ivar key_check: digest of the API key that made the draft.
    :ivar salt: of the digests in ``input``.
    :ivar input: a digest of each argument that the draft was made from, without phones, answer and files.
    :ivar identity: digest of the subject and the addresses that the service shows.
    :ivar item: digest of the same, the same in all tasks of a run.
    :ivar asked: by the attempt that made the draft; see :attr:`.Attempt.asked`.
    :ivar key: of the row of this task's delivery key; "" if it delivers without one.
    :ivar security: the option of the draft, which the service does not return.
    :ivar is_rehearsal: the draft is, or was, never sent, wherever the connection leads by then.
    :ivar chosen: digests of the addresses to which a transfer is delivered again; see :class:`.RedeliverFilesOperator`.
    :ivar approval: None if the send needs no approval.
    :ivar entries: by task instance; "" if the task that makes the draft attaches its files.
    :ivar wait: the deadline of the task's wait for pickup, and what a clear changes; see :func:`.keep_deadline`.
    """

    claim: int = 0
    owner: str = ""
    tries: dict[str, tuple[str, int]] = {}
    phase: Phase = Phase.EMPTY
    transfer_id: str = ""
    account: str = ""
    key_check: str = ""
    salt: str = ""
    input: dict[str, str] = {}
    identity: str = ""
    item: str = ""
    asked: tuple[str, str, int] = ("", "", 0)
    key: str = ""
    security: str = ""
    is_rehearsal: bool = False
    chosen: Sequence[str] = ()
    approval: Approval | None = None
    entries: dict[str, Entry] = {}
    wait: tuple[str, str] = ("", "")

    def emptied(self) -> Memory:
        """Return it without its draft. Who has filled or approved that must do so again: their entries stay, empty."""
        kept = {
            each: getattr(self, each) for each in ("claim", "owner", "tries", "key", "is_rehearsal", "chosen", "wait")
        }
        entries = {who: Entry(entry.claim) for who, entry in self.entries.items() if who}
        return Memory(**kept, approval=self.approval and Approval(), entries=entries)

    def erased(self) -> Memory:
        """Return it without digests and files, after which a sent transfer can no longer be compared.

        The twin digest stays: testing an address against it also takes the subject and the files' bytes.
        """
        entries = {who: replace(entry, files={}) for who, entry in self.entries.items()}
        approval = self.approval and replace(self.approval, by="")
        erased = replace(self, salt="", input={}, identity="", item=self.twin(), chosen=(), entries=entries)
        return replace(erased, approval=approval)

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

    @property
    def is_asked(self) -> bool:
        """Whether a person is asked now to approve the draft."""
        return bool(self.phase is Phase.HANDED_ON and self.approval and self.approval.is_waiting)

    def shown(self) -> str:
        """Return twelve digits that stand for the files of the draft, by their names and ids."""
        return hash_of(self.transfer_id, self.files())[:12]

    def twin(self) -> str:
        """Return what a twin has in common with it: run, subject, addresses, and names and bytes of the files."""
        if self.is_erased:
            return self.item
        return hash_of(self.item, sorted((name, held.size, held.digest) for name, held in self.held.items()))


class Row:
    """The row of one delivery, as one attempt reads and writes it.

    :param key: identifies the delivery: a digest of its task instance, or of its delivery key.
    :param delivery_key: "" if the task instance identifies it.
    :ivar memory: as it was last read or written here.
    :ivar claim_number: the claim of this attempt, for a process that continues it after a deferral; 0 if it has none.
    """

    def __init__(self, rows: Deliveries, key: str, delivery_key: str = "") -> None:
        self.rows, self.key, self.delivery_key = rows, key, delivery_key
        self.memory, self.claim_number = Memory(), 0

    @classmethod
    def of_task(cls, rows: Deliveries, task: Task) -> Row:
        """Return the row of a task instance."""
        return cls(rows, hash_of("task", *task))

    @classmethod
    def of_delivery_key(cls, rows: Deliveries, account: str, delivery_key: str) -> Row:
        """Return the row of a delivery key."""
        return cls(rows, hash_of("delivery_key", account, delivery_key), delivery_key)

    def read(self) -> tuple[int, Memory]:
        """Return the version and the memory; 0 and an empty one if there is no row.

        :raises DeliveriesUnavailable: it is not as this version writes it.
        """
        version, text = self.rows.read(self.key)
        try:
            self.memory = msgspec.json.decode(text, type=Memory) if version else Memory()
        except msgspec.MsgspecError as error:
            raise DeliveriesUnavailable(
                f"The row of this delivery cannot be read: {error}. Nothing is sent. Run one version of the provider"
            ) from None
        return version, self.memory

    def put(self, version: int, memory: Memory, kept: Memory | None = None, error: str = "") -> bool:
        """Store the memory if the row still has this version; return whether it was stored.

        :param kept: to keep beside it for the page, with this error, before the row is used for another draft.
        """
        copy = Kept(hash_of(self.key, kept.transfer_id), self._stored(kept, ""), error) if kept else None
        is_stored = self.rows.put(self.key, version, self._stored(memory, memory.twin()), copy)
        self.memory = memory if is_stored else self.memory
        return is_stored

    def _stored(self, memory: Memory, twin: str) -> Stored:
        started, try_number = memory.tries.get(memory.owner, ("", 0))
        # The page shows the row of the delivery key instead, and no row that has a deadline alone.
        task = ("", "", "", -1) if memory.key or not memory.owner else task_of(memory.owner)
        return Stored(
            bool(self.delivery_key),
            memory.account,
            memory.transfer_id,
            ASKED if memory.is_asked else memory.phase.value,
            twin,
            started,
            msgspec.json.encode(memory).decode(),
            *task,
            try_number,
            memory.is_rehearsal,
        )

    def change(self, change: Callable[[Memory], Memory], keep: Keep = lambda _: None, error: str = "") -> Memory:
        """Read, change and store the memory, again if somebody else has changed it meanwhile; return it.

        :param keep: returns what to keep of the memory; see :meth:`put`.
        """
        while True:
            version, memory = self.read()
            if self.put(version, changed := change(memory), keep(memory), error):
                return changed

    def claim(self, by: TaskTry, check: Callable[[Memory], object] = lambda _: None, *, is_own: bool = False) -> Memory:
        """Begin an attempt. From now on, no earlier one can store anything of the draft.

        :param check: raises an error if the row must not be claimed.
        :param is_own: the row is the task instance's own. If its run was created again, the row starts empty.
        :raises StaleTry: a later attempt of the same task instance has claimed the row.
        """
        name = task_name(by.task)

        def of_deleted_run(memory: Memory) -> Memory | None:
            started = memory.tries.get(name, ("", 0))[0]
            return memory if is_own and by.is_fresh and "" < started < by.run_started_at else None

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
        """Continue the attempt that has made this claim.

        :raises StaleTry: another attempt has begun.
        """
        self.claim_number = claim
        self.check_own(self.read()[1])

    def check_own(self, memory: Memory) -> None:
        """:raises StaleTry: another attempt has claimed the row."""
        if memory.claim != self.claim_number:
            raise StaleTry(
                "Another attempt of this delivery has begun, or its row was deleted: this one stops, and sends nothing"
            )

    def save(self, change: Callable[[Memory], Memory] = lambda memory: memory, **fields: Any) -> Memory:
        """Change the memory as the newest claimant.

        :raises StaleTry: another attempt has begun.
        """

        def saved(memory: Memory) -> Memory:
            self.check_own(memory)
            return replace(change(memory), **fields)

        return self.change(saved)


def find_row(rows: Deliveries, account: str, transfer_id: str) -> Row | None:
    """Return the row of a transfer; None if there is none in any account.

    :raises WrongTransfer: it was made in another account: here the id may belong to another transfer.
    """
    found = rows.find(transfer_id)
    keys = [key for key, then in found if then == account]
    if found and not keys:
        raise WrongTransfer(
            f"The connection leads to {account}, and transfer {transfer_id} was made in {found[0][1]}. Nothing is "
            "done here. Correct the connection."
        )
    return Row(rows, keys[0]) if keys else None


def require_row(rows: Deliveries, account: str, transfer_id: str) -> Row:
    """Return the row of a draft.

    :raises WrongTransfer: no row knows the draft, or it was made in another account.
    """
    if row := find_row(rows, account, transfer_id):
        return row
    raise WrongTransfer(
        f"No delivery knows the id {transfer_id}: its draft was replaced or deleted; or it was made outside this "
        f"Airflow, and the hook's methods attach to it and send it. {AGAIN}"
    )


def read_memory(rows: Deliveries, task: Task) -> Memory:
    """Return what the delivery of a task instance remembers, under its delivery key if it has one."""
    memory = Row.of_task(rows, task).read()[1]
    return Row(rows, memory.key).read()[1] if memory.key else memory


def require_draft(memory: Memory, transfer_id: str, *phases: Phase) -> None:
    """Check that a row is still about this draft: its maker may have made another, or somebody may delete it.

    :raises DraftChanged: it is not, or not in one of these phases.
    """
    if memory.transfer_id != transfer_id or memory.phase not in phases:
        raise DraftChanged(f"Draft {transfer_id} was replaced or deleted, or is being filled or deleted. {AGAIN}")


def keep_deadline(context: Context, deadline: datetime) -> datetime:
    """Store when the task's wait times out; return what an earlier attempt has stored, unless a clear came between."""
    by = TaskTry.of(context)
    row, cleared = Row.of_task(open_rows(), by.task), f"{by.run_started_at} {read_clears(context)}"
    stored, then = row.read()[1].wait
    if then == cleared:
        return datetime.fromisoformat(stored)
    row.change(lambda memory: replace(memory, wait=(deadline.isoformat(), cleared)))
    return deadline


def hash_of(*parts: Any) -> str:
    """Return the SHA-256 of anything that JSON can represent, in hexadecimal."""
    # The standard library's JSON escapes invalid Unicode, such as a file name in another encoding.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def digest(value: Any) -> str:
    """Return a digest with a salt of its own. Not for short secrets: they could be guessed from it."""
    salt = secrets.token_hex(8)
    return f"{salt}${hash_of(salt, value)}"


def matches(stored: str, value: Any) -> bool:
    """Return whether ``stored`` is the :func:`digest` of a value."""
    salt, _, found = stored.partition("$")
    return found == hash_of(salt, value)
