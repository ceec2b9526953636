"""Attach files to a draft, as one task of those that share it, or as the task that makes it.

What tasks know of each other is the draft's row. A task opens its entry before anything else and closes it when the
draft holds its files; nothing is sent while an entry is open. A name is stored before its upload begins, so whoever
comes next knows which uploads may still arrive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from msgspec.structs import replace

from outbound_transfer.client.client import Client
from outbound_transfer.client.errors import AlreadyDelivered, DraftChanged, DraftInUse, FileConflict
from outbound_transfer.client.models import File, Transfer
from outbound_transfer.delivery.attempt import StaleTry
from outbound_transfer.delivery.check import (
    FindSources,
    changed_files,
    is_comparable,
    is_of,
    require_file_list,
    reused_id,
)
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.row import AGAIN, Entry, Memory, Row, require_draft
from outbound_transfer.files.attached import Held, Taken, attach_sources, shorten
from outbound_transfer.files.sources import Source

#: Seconds between two times at which the files attached so far are stored.
_SAVE_INTERVAL: Final = 1.0

log: Any = logging.getLogger(__name__)


class Filling:
    """The files of one task in a draft, as one attempt attaches them.

    :param who: the task instance; "" if it makes the draft, too.
    :ivar files: by name; None if an upload of it has begun.
    """

    def __init__(self, client: Client, row: Row, transfer_id: str, who: str = "") -> None:
        self._client, self._row, self._id, self._who = client, row, transfer_id, who
        self._phases = (Phase.HANDED_ON,) if who else (Phase.DRAFT, Phase.HANDED_ON)
        self._entry, self._claim, self._saved_at, self._storing = Entry(), 1, 0.0, Lock()
        self.files: dict[str, Held | None] = {}

    def attach(self, find: FindSources, max_parallel: int) -> list[File]:
        """Make the draft hold these files beside those of other tasks; return the service's record of each.

        :raises AlreadyDelivered: it was sent with other files, or without this task's.
        :raises DraftInUse: a send is under way, or in doubt.
        :raises DraftChanged: the draft was replaced, or cannot get the files; it must be made again.
        :raises FileConflict: it holds a file of such a name that this task did not attach.
        :raises SourceChanged: a file changed while it was read; its record is removed.
        """
        is_sending = self._row.change(self._open).phase is Phase.SENDING
        self.files = dict(self._entry.files)
        transfer = self._read()
        if not transfer.is_draft:
            return self._compare_sent(transfer, find, is_reopened=not is_sending)
        if is_sending:
            raise DraftInUse(f"A send of draft {self._id} is under way, or in doubt: its files are not changed")
        self.fill(find(), {file.name: file for file in transfer.files or ()}, max_parallel)
        return self.records()

    def fill(self, sources: Sequence[Source], held: Mapping[str, File], max_parallel: int) -> None:
        """Attach sources, and remove what is not among them.

        :param held: what the draft holds, by name.
        """
        wanted, before = {source.name: source for source in sources}, self.files
        leaving = self._removable(wanted.keys())
        if foreign := sorted(held.keys() & wanted.keys() - before.keys()):
            raise FileConflict(
                f"The draft holds {foreign}, which this task did not attach. Remove it, or deliver in another draft."
            )
        keeps = {name: before[name] for name in before if name in wanted and self._is_held(wanted[name], held)}
        # Before the first call that changes the draft: whoever comes next trusts none of these names.
        begun = dict.fromkeys(name for name in wanted if name not in keeps)
        self.files = begun | keeps | {name: replace(file, fingerprint="") for name, file in leaving.items()}
        self._save()
        for name, file in leaving.items():
            self._client.remove_file(self._id, file.id, self._check_own)
            log.info("Removed %s from the draft: it is not, or no longer, what is delivered", name)
        self.files = begun | keeps
        taken = {name: _taken(before[name], held.get(name)) for name in begun if name in before}
        self._upload([wanted[name] for name in begun], taken, max_parallel)
        self.files = {name: self.files[name] for name in wanted}
        self._save(is_open=False)

    def records(self) -> list[File]:
        """Return the service's records of the task's files."""
        return [File(held.id, name, held.size) for name, held in self.files.items() if held]

    def _removable(self, wanted: Collection[str]) -> dict[str, Held]:
        """Return the files that are to be removed.

        :raises DraftChanged: an upload of one may still arrive.
        """
        leaving = {name: file for name, file in self.files.items() if name not in wanted}
        if lost := sorted(name for name, file in leaving.items() if file is None or file.is_doubtful):
            raise DraftChanged(
                f"An upload of {lost} may still arrive in draft {self._id}, without being wanted. {AGAIN}"
            )
        return {name: file for name, file in leaving.items() if file}

    def _is_held(self, source: Source, held: Mapping[str, File]) -> bool:
        """Return whether the draft holds a file as an earlier attempt attached it, and the source is the same."""
        before, now = self.files[source.name], held.get(source.name)
        if before is None or now is None or now.id != before.id:
            return False
        return (before.size, before.fingerprint) == (source.size, shorten(source))

    def _upload(self, sources: Sequence[Source], taken: Mapping[str, Taken], max_parallel: int) -> None:
        try:
            attach_sources(
                self._client,
                self._id,
                sources,
                max_parallel=max_parallel,
                on_attached=self._on_attached,
                taken=taken,
                check_still_current=self._check_own,
            )
        except Exception:
            with suppress(Exception):  # the first error counts, and what is not stored is uploaded again
                self._save()
            raise

    def _on_attached(self, name: str, held: Held) -> None:
        self.files[name] = held
        if time.monotonic() - self._saved_at > _SAVE_INTERVAL:
            self._save()

    def _read(self) -> Transfer:
        transfer = self._client.get_transfer(self._id)
        if not is_of(self._row.memory, transfer):
            raise reused_id(self._id)
        require_file_list(transfer)
        return transfer

    def _compare_sent(self, transfer: Transfer, find: FindSources, *, is_reopened: bool) -> list[File]:
        """Return the records of what was sent, after a comparison with the files of now."""
        if not is_comparable(self._row.memory, [self._entry]):
            return list(transfer.files or ())
        if differences := changed_files({name: each for name, each in self.files.items() if each}, find):
            raise AlreadyDelivered(
                f"This run has already delivered transfer {transfer.id}, with other files: {differences}. Nothing is "
                "attached. To deliver these, trigger a new DAG run."
            )
        log.info("Transfer %s was sent with these files; nothing is attached again", transfer.id)
        if is_reopened:  # by this attempt; somebody else has sent it
            self._save(is_open=False)
        return self.records()

    def _open(self, memory: Memory) -> Memory:
        require_draft(memory, self._id, *self._phases, Phase.SENDING)
        if "" in memory.entries:
            raise FileConflict(f"Draft {self._id} is of a task that fills and sends it alone. Nothing is attached.")
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
            raise StaleTry("Another attempt of this task has begun: this one stops, and attaches nothing")

    def _save(self, *, is_open: bool = True) -> None:
        files = dict(self.files)

        def saved(memory: Memory) -> Memory:
            self._require_own(memory)
            others = {name for who, entry in memory.entries.items() if who != self._who for name in entry.files}
            if both := sorted(others & files.keys()):
                raise FileConflict(f"Another task attaches {both} to draft {self._id}, too. Nothing is sent.")
            changed = self._with(memory, Entry(self._claim, is_open, files))
            return changed if is_open else replace(changed, phase=Phase.HANDED_ON)

        with self._storing:
            self._row.change(saved)
        self._saved_at = time.monotonic()

    def _with(self, memory: Memory, entry: Entry) -> Memory:
        return replace(memory, entries={**memory.entries, self._who: entry})


def _taken(before: Held | None, now: File | None) -> Taken:
    return Taken(now.id if now else "", is_doubtful=before is None or before.is_doubtful)
