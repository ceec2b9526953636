"""Attach files to a draft, as one of the tasks that share it or the task that creates it; send it.

Tasks know each other only by the draft's row. A task opens its entry before anything else and closes it when the
draft holds its files; nothing is sent while an entry is open. A name is stored before its upload begins, so the
next attempt knows which uploads may still arrive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from outbound_transfer.client import errors
from outbound_transfer.client.client import Client
from outbound_transfer.client.models import File, Transfer
from outbound_transfer.delivery.attempt import LEFT_OUT, Attempt, StaleTry, describe
from outbound_transfer.delivery.decision import Phase, Seen
from outbound_transfer.delivery.row import AGAIN, REJECTED, Entry, Memory, Row, is_of, require_draft
from outbound_transfer.delivery.sent import FindSources, changed_files, check_sent
from outbound_transfer.files.attached import Held, Taken, Uploads, shorten
from outbound_transfer.files.sources import Source
from outbound_transfer.observability import metrics

if TYPE_CHECKING:
    from outbound_transfer.delivery.delivery import Delivery

_SAVE_INTERVAL: Final = 1.0  # seconds between two times at which the files attached so far are stored
DRAFT_LIFE: Final = 60.0  # seconds for which a draft that this process has filled need not be read

log: Any = logging.getLogger(__name__)


class Filling:
    """The files of one task in a draft, as one attempt attaches them; ``who`` is "" if the task creates the draft."""

    def __init__(self, client: Client, row: Row, transfer_id: str, who: str = "") -> None:
        self._client, self._row, self._id, self._who = client, row, transfer_id, who
        self._phases = (Phase.HANDED_ON,) if who else (Phase.DRAFT, Phase.HANDED_ON)
        self._entry, self._claim, self._saved_at, self._storing = Entry(), 1, 0.0, Lock()
        self.files: dict[str, Held | None] = {}  # as those of an entry

    def attach(self, find: FindSources, max_parallel: int) -> list[File]:
        """Make the draft hold these files beside those of other tasks; return the service's record of each."""
        is_sending = self._row.change(self._open).phase is Phase.SENDING
        self.files = dict(self._entry.files)
        transfer = self._client.get_transfer(self._id)
        if not is_of(self._row.memory, transfer):
            raise reused_id(self._id)
        if not transfer.is_draft:
            return self._compare_sent(transfer, find)
        if is_sending:
            raise errors.DraftInUse(f"A send of draft {self._id} is under way or in doubt: its files are not changed")
        self.fill(find(), {file.name: file for file in files_of(transfer)}, max_parallel)
        return self.records()

    def fill(self, sources: Sequence[Source], held: Mapping[str, File], max_parallel: int) -> None:
        """Attach sources to a draft that has ``held``, and remove what is not among them."""
        wanted, before = {source.name: source for source in sources}, self.files
        leaving = {name: file for name, file in before.items() if name not in wanted}
        self._refuse_foreign(leaving, held.keys() & wanted.keys() - before.keys())
        keeps = {name: before[name] for name in before if name in wanted and self._is_held(wanted[name], held)}
        begun = dict.fromkeys(name for name in wanted if name not in keeps)
        removed = {name: replace(file, fingerprint="") for name, file in leaving.items() if file}
        # Before the first call that changes the draft: the next attempt trusts none of these names.
        self.files = begun | keeps | removed
        self._save()
        for name, file in removed.items():
            self._client.remove_file(self._id, file.id, self._check_own)
            log.info("Removed %s from the draft: it is not part of this delivery", name)
        self.files = begun | keeps
        taken = {  # names of which an earlier attempt has begun an upload
            name: Taken(held[name].id if name in held else "", each is None or each.is_doubtful)
            for name, each in before.items()
            if name in begun
        }
        try:
            uploads = Uploads(self._client, self._id, self._on_attached, taken, self._check_own)
            uploads.attach([wanted[name] for name in begun], max_parallel)
        except Exception:
            with suppress(Exception):  # the first error counts, and what is not stored is uploaded again
                self._save()
            raise
        self.files = {name: self.files[name] for name in wanted}
        self._save(is_open=False)

    def records(self) -> list[File]:
        return [File(held.id, name, held.size) for name, held in self.files.items() if held]

    def _refuse_foreign(self, leaving: Mapping[str, Held | None], foreign: Collection[str]) -> None:
        if lost := sorted(name for name, file in leaving.items() if file is None or file.is_doubtful):
            raise errors.DraftChanged(f"An unwanted upload of {lost} may still arrive in draft {self._id}. {AGAIN}")
        if foreign:
            raise errors.FileConflict(
                f"The draft holds {sorted(foreign)}, which this task did not attach. Remove it, or use another draft."
            )

    def _is_held(self, source: Source, held: Mapping[str, File]) -> bool:
        """Return whether the draft holds a file as an earlier attempt attached it, and the source has not changed."""
        before, now = self.files[source.name], held.get(source.name)
        if before is None or now is None or now.id != before.id:
            return False
        return (before.size, before.fingerprint) == (source.size, shorten(source))

    def _on_attached(self, name: str, held: Held) -> None:
        self.files[name] = held
        if time.monotonic() - self._saved_at > _SAVE_INTERVAL:
            self._save()

    def _compare_sent(self, transfer: Transfer, find: FindSources) -> list[File]:
        """Return the records of what was sent, after a comparison with the current files."""
        if differences := changed_files(self._row.memory, [self._entry], find):
            raise errors.AlreadyDelivered(
                f"This run already delivered transfer {transfer.id} with different files: {differences}. Nothing is "
                "attached. To deliver these, trigger a new Dag run."
            )
        if self._row.memory.is_erased:
            return list(transfer.files or ())
        log.info("Transfer %s was sent with these files; nothing is attached again", transfer.id)
        if self._row.memory.phase is not Phase.SENDING:  # this attempt has opened its entry; somebody else has sent it
            self._save(is_open=False)
        return self.records()

    def _open(self, memory: Memory) -> Memory:
        require_draft(memory, self._id, *self._phases, Phase.SENDING)
        if "" in memory.entries:
            raise errors.FileConflict(f"Draft {self._id} is filled and sent by a single task. Nothing is attached.")
        self._entry = memory.entries.get(self._who, Entry())  # as it was
        self._claim = self._entry.claim + 1
        if memory.phase is Phase.SENDING:  # its files stay as they are
            return memory
        return self._with(memory, replace(self._entry, claim=self._claim, is_open=True))

    def _check_own(self) -> None:
        with self._storing:  # a hook of PostgreSQL is not safe in several threads
            self._require_own(self._row.read()[1])

    def _require_own(self, memory: Memory) -> None:
        if not self._who:
            self._row.check_own(memory)
        require_draft(memory, self._id, *self._phases)
        if self._who and memory.entries.get(self._who, Entry()).claim != self._claim:
            raise StaleTry("Another attempt of this task has started: this one stops, and attaches nothing")

    def _save(self, *, is_open: bool = True) -> None:
        files = dict(self.files)

        def saved(memory: Memory) -> Memory:
            self._require_own(memory)
            others = {name for who, entry in memory.entries.items() if who != self._who for name in entry.files}
            if both := sorted(others & files.keys()):
                raise errors.FileConflict(f"Another task also attaches {both} to draft {self._id}. Nothing is sent.")
            changed = self._with(memory, Entry(self._claim, is_open, files))
            return changed if is_open else replace(changed, phase=Phase.HANDED_ON)

        with self._storing:
            self._row.change(saved)
        self._saved_at = time.monotonic()

    def _with(self, memory: Memory, entry: Entry) -> Memory:
        return replace(memory, entries={**memory.entries, self._who: entry})


class DraftOutdated(Exception):
    """Control flow, not an error: the inputs of the draft changed right before its send."""


class Sending:
    """The attempts of one process to send a draft, whose row it has claimed. The service sends it once."""

    def __init__(self, delivery: Delivery, draft: Transfer | None, is_outdated: Callable[[], bool]) -> None:
        self._delivery, self._row, self._draft, self._is_outdated = delivery, delivery.row, draft, is_outdated
        self._id, self._must_read_at = delivery.memory.transfer_id, time.monotonic() + DRAFT_LIFE
        self._is_in_doubt = delivery.memory.phase is Phase.SENDING  # of any call of any attempt

    def send(self) -> Transfer:
        """Send the draft, and return what the service says of it; or return the transfer that it became before."""
        transfer = self._delivery.client.retry("send", lambda _: self._send_once())
        check_sent(self._row.memory, transfer)
        if self._delivery.has_sent:
            metrics.DELIVERIES.emit(outcome="sent", conn_id=self._delivery.attempt.conn_id)
        return transfer

    def _send_once(self) -> Transfer:
        if sent := self._begin():
            return sent
        log.info("Sending transfer '%s'", self._id)
        try:
            self._row.require_no_twin(self._delivery.attempt)  # of two that begin at once, one sees the other
            transfer = self._delivery.client.send_once(self._id)
        except (errors.AlreadyDelivered, errors.CallError) as error:
            self._delivery.has_sent |= (in_doubt := isinstance(error, errors.CallError) and error.in_doubt)
            if in_doubt or not isinstance(error, errors.RateLimited):
                self._draft = None  # this attempt may have sent it, or has waited for long
            self._is_in_doubt |= in_doubt
            if not self._is_in_doubt:
                self._row.save(phase=Phase.HANDED_ON)
            raise
        self._delivery.has_sent = True
        return transfer

    def _begin(self) -> Transfer | None:
        """Store that a send begins, if the draft is what the row says; or return the transfer that was sent before."""
        while True:
            is_fresh = time.monotonic() < self._must_read_at
            transfer = self._draft if self._draft and is_fresh else self._read()
            if not transfer.is_draft:
                return transfer
            if self._is_outdated():
                raise DraftOutdated
            # Last: the calls above may have waited for long.
            self._delivery.attempt.check_still_running()
            version, memory = self._row.read()
            self._row.check_own(memory)
            require_draft(memory, self._id, Phase.HANDED_ON, Phase.SENDING)
            memory = without_skipped(memory, self._delivery.attempt)
            require_attached(memory, transfer)
            if memory.is_rehearsal:
                raise errors.Rehearsed("The draft was created by a rehearsal: it is not sent")
            self._delivery.client.check_sends()
            require_approved(memory)
            if self._row.put(version, replace(memory, phase=Phase.SENDING)):
                return None

    def _read(self) -> Transfer:
        if (seen := self._delivery.look_here()) is Seen.GONE:
            self._delivery.settle(seen=seen)  # which refuses a draft whose send is in doubt
            raise errors.DraftChanged(f"The service no longer shows draft {self._id}. {AGAIN}")
        return self._delivery.known()


def without_skipped(memory: Memory, attempt: Attempt) -> Memory:
    """Leave out the entries of tasks that attached to an earlier draft, and are skipped or removed this time.

    :raises DraftChanged: the draft holds files of such a task, or a task that attaches has failed.
    """
    entries = dict(memory.entries)
    for who, entry in memory.entries.items():
        # A closed entry is of a task that has succeeded, which only a clear can change.
        if not who or not (entry.is_open or attempt.by.clear_number):
            continue
        state = attempt.state_of(who)
        if state in LEFT_OUT and not entry.files:
            del entries[who]
        elif state in LEFT_OUT:
            raise errors.DraftChanged(
                f"Draft {memory.transfer_id} holds files of the {describe(who)}, which is {state} this time. {AGAIN}"
            )
        elif entry.is_open and state in ("failed", "upstream_failed"):
            raise errors.DraftChanged(
                f"The {describe(who)}, which attaches files to draft {memory.transfer_id}, has failed. Nothing is "
                "sent: clear it, and this task"
            )
    return replace(memory, entries=entries)


def reused_id(transfer_id: str) -> errors.WrongTransfer:
    return errors.WrongTransfer(
        f"The id {transfer_id} now belongs to another transfer, with other recipients or another subject. Nothing is "
        "done with it."
    )


def files_of(transfer: Transfer) -> Sequence[File]:
    """Return a transfer's files. A draft must list them: a missing list does not mean that there are none."""
    if transfer.is_draft and transfer.files is None:
        raise errors.MalformedResponse(f"get: the response does not say which files draft {transfer.id} holds")
    return transfer.files or ()


def require_closed(memory: Memory) -> dict[str, str]:
    """Return the ids of the files that the draft must hold, by name, once all of them are attached."""
    if (files := memory.files()) is None:
        names = [describe(who or memory.owner) for who, entry in memory.entries.items() if entry.is_open]
        raise errors.DraftInUse(
            f"The {', '.join(names)} has not finished attaching files to draft {memory.transfer_id}: nothing is sent"
        )
    return files


def require_attached(memory: Memory, draft: Transfer) -> None:
    """Check that a draft holds the files that were attached, and no others."""
    held, meant = {file.name: file.id for file in files_of(draft)}, require_closed(memory)
    if held != meant:
        raise errors.DraftChanged(
            f"Draft {draft.id} holds {sorted(held)}, which are not the files that were attached to it: "
            f"{sorted(meant)}. {AGAIN}"
        )


def require_approved(memory: Memory) -> None:
    """Check that the draft's files were approved, if anybody ever had to approve them."""
    approval = memory.approval
    if approval is None or memory.is_approved:
        return
    if approval.is_waiting:
        raise errors.DraftInUse(
            f"Nobody has approved or rejected draft {memory.transfer_id} yet. Nothing is sent until then"
        )
    if approval.state == REJECTED:
        raise errors.DraftChanged(f"{approval.by} rejected draft {memory.transfer_id}. Nothing is sent.")
    raise errors.DraftChanged(
        f"The files of draft {memory.transfer_id} are not approved. Nothing is sent: clear the task that asks for the "
        "approval, and this one"
    )
