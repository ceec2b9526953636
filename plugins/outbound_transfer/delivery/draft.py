"""Attach files to a draft, as one task of those that share it, or as the task that makes it.

What tasks know of each other is the draft's row. A task opens its entry before anything else and closes it when the
draft holds its files; nothing is sent while an entry is open. A name is stored before its upload begins, so whoever
comes next knows which uploads may still arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from outbound_transfer.airflow_compat.task_try import StaleTry
from outbound_transfer.client.errors import AlreadyDelivered, DraftChanged, DraftInUse, FileConflict, WrongTransfer
from outbound_transfer.delivery.check import is_of, require_file_list
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.row import AGAIN, Entry, Memory, Row, require_draft, with_entry
from outbound_transfer.files.attached import Held, describe_differences, shorten
from outbound_transfer.files.uploads import FinishedUpload, Taken, attach_sources

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import File, Transfer
    from outbound_transfer.files.sources import Source

#: Seconds between two times at which the files attached so far are stored.
_SAVE_INTERVAL: Final = 1.0

#: Finds the files; takes a list for the errors of those that are gone if they are compared with what was sent.
FindSources = Callable[..., Sequence["Source"]]


class Filling:
    """The files of one task in a draft, as one attempt attaches them.

    :param who: the task instance; "" if it makes the draft, too.
    :param check: called before each call that changes the draft; raises an error if this attempt must not.
    """

    def __init__(
        self,
        client: Client,
        row: Row,
        transfer_id: str,
        who: str,
        log: Logger,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._client, self._row, self._id, self._who = client, row, transfer_id, who
        self._log, self._check = log, check
        self._phase = Phase.HANDED_ON if who else Phase.DRAFT
        self._claim, self._saved_at, self._was_open, self._checking = 0, 0.0, True, Lock()
        self.files: dict[str, Held | None] = {}

    def attach(self, find: FindSources, max_parallel: int) -> list[File]:
        """Make the draft hold these files beside those of other tasks; return the service's record of each.

        :raises AlreadyDelivered: it was sent with other files, or without this task's.
        :raises DraftInUse: a send is under way, or in doubt.
        :raises DraftChanged: the draft was replaced, or cannot get the files; it must be made again.
        :raises FileConflict: it holds a file of such a name that this task did not attach.
        :raises SourceChanged: a file changed while it was read; its record is removed.
        """
        self.files = dict(_entry(self._row.change(self._open), self._who).files)
        transfer = self._read()
        if not self._claim or not transfer.is_draft:
            return self._compare_sent(transfer, find)
        sources = find()
        held = {file.name: file for file in transfer.files or ()}
        self.fill(sources, held, max_parallel)
        return self.records([source.name for source in sources])

    def fill(self, sources: Sequence[Source], held: Mapping[str, File], max_parallel: int) -> None:
        """Attach sources, and remove what is not among them.

        :param held: what the draft holds, by name.
        """
        wanted, before = {source.name: source for source in sources}, self.files
        leaving = before.keys() - wanted.keys()
        if lost := sorted(name for name in leaving if (each := before[name]) is None or each.is_doubtful):
            raise DraftChanged(
                f"An upload of {lost} may still arrive in draft {self._id}, without being wanted. {AGAIN}"
            )
        if foreign := sorted(held.keys() & wanted.keys() - before.keys()):
            raise FileConflict(
                f"The draft holds {foreign}, which this task did not attach. Remove it, or deliver in another draft."
            )
        keeps = {name for name, each in before.items() if name in wanted and _is_same(each, wanted[name], held)}
        # Before the first call that changes the draft: whoever comes next trusts none of these names.
        self.files = {
            name: _planned(before.get(name), is_kept=name in keeps, is_leaving=name in leaving)
            for name in before | wanted
        }
        self._save(check_names=True)
        for name in sorted(leaving):
            file = self.files.pop(name)
            assert file is not None, "otherwise it is lost"
            self._client.remove_file(self._id, file.id, self._check_own)
            self._log.info("Removed %s from the draft: it is not, or no longer, what is delivered", name)
            self._save()
        taken = {
            name: Taken(held[name].id if name in held else "", is_doubtful=each is None or each.is_doubtful)
            for name, each in before.items()
            if name in wanted and name not in keeps
        }
        attach_sources(
            self._client,
            self._id,
            [source for source in sources if source.name not in keeps],
            max_parallel=max_parallel,
            on_attached=self._on_attached,
            log=self._log,
            taken=taken,
            check_still_current=self._check_own,
        )
        self._save(is_open=False)

    def records(self, names: Sequence[str]) -> list[File]:
        """Return the service's records of the task's files, in the order of their names here."""
        from outbound_transfer.client.models import File

        return [File(held.id, name, held.size) for name in names if (held := self.files[name])]

    def _open(self, memory: Memory) -> Memory:
        require_draft(memory, self._id, self._phase, Phase.SENDING)
        if "" in memory.entries:
            raise FileConflict(f"Draft {self._id} is of a task that fills and sends it alone. Nothing is attached.")
        before = _entry(memory, self._who)
        self._claim, self._was_open = 0, before.is_open  # again, if the row has changed meanwhile
        if memory.phase is Phase.SENDING:  # nobody changes its files any more
            return memory
        self._claim = before.claim + 1
        return with_entry(memory, self._who, replace(before, claim=self._claim, is_open=True))

    def _read(self) -> Transfer:
        transfer = self._client.get_transfer(self._id)
        if not is_of(self._row.memory, transfer):
            raise WrongTransfer(
                f"Under the id {self._id} is another transfer now, to other recipients or with another subject. "
                "Nothing is done with it."
            )
        require_file_list(transfer)
        return transfer

    def _compare_sent(self, transfer: Transfer, find: FindSources) -> list[File]:
        """Return the records of what was sent, after a comparison with the files of now."""
        if transfer.is_draft:
            raise DraftInUse(f"A send of draft {self._id} is under way, or in doubt: its files are not changed")
        if self._row.memory.is_erased:
            self._log.warning("What transfer %s was sent with was erased, and is not compared", self._id)
            return list(transfer.files or ())
        if self._was_open:
            raise AlreadyDelivered(
                f"Transfer {self._id} was sent without this task's files, or with some of them. Nothing is attached. "
                "To deliver them, trigger a new DAG run."
            )
        gone: list[OutboundTransferError] = []
        sources = find(gone)
        names = {source.name for source in sources}
        held = {name: each for name, each in self.files.items() if each and (not gone or name in names)}
        if differences := describe_differences(held, sources):
            raise AlreadyDelivered(
                f"This run has already delivered transfer {transfer.id}, with other files: "
                f"{'; '.join(differences[:5])}. Nothing is attached. To deliver these, trigger a new DAG run."
            )
        if gone:
            self._log.warning("Could not compare sent files with their sources, which are gone: %s", gone[0])
        self._log.info("Transfer %s was sent with these files; nothing is attached again", transfer.id)
        if self._claim:  # somebody else has sent it
            self._save(is_open=False)
        return self.records(list(self.files))

    def _on_attached(self, upload: FinishedUpload) -> None:
        self.files[upload.source.name] = Held.of(upload)
        if time.monotonic() - self._saved_at > _SAVE_INTERVAL:
            self._save()

    def _check_own(self) -> None:
        with self._checking:  # before Airflow 3.2, only one thread may talk to Airflow
            self._check()
            self._require_own(self._row.read()[1])

    def _require_own(self, memory: Memory) -> None:
        if not self._who:
            self._row.check_own(memory)
        require_draft(memory, self._id, self._phase)
        if self._who and _entry(memory, self._who).claim != self._claim:
            raise StaleTry("Another attempt of this task has begun: this one stops, and attaches nothing")

    def _save(self, *, is_open: bool = True, check_names: bool = False) -> None:
        files = dict(self.files)

        def saved(memory: Memory) -> Memory:
            self._require_own(memory)
            others = {name for who, entry in memory.entries.items() if who != self._who for name in entry.files}
            if check_names and (both := sorted(others & files.keys())):
                raise FileConflict(f"Another task attaches {both} to draft {self._id}, too. Nothing is sent.")
            return with_entry(memory, self._who, Entry(self._claim, is_open, files))

        self._row.change(saved)
        self._saved_at = time.monotonic()


def _entry(memory: Memory, who: str) -> Entry:
    return memory.entries.get(who, Entry())


def _is_same(before: Held | None, source: Source, held: Mapping[str, File]) -> bool:
    """Return whether the draft holds a file as an earlier attempt attached it, and the source has not changed since."""
    if before is None or source.name not in held or held[source.name].id != before.id:
        return False
    return (before.size, before.fingerprint) == (source.size, shorten(source))


def _planned(before: Held | None, *, is_kept: bool, is_leaving: bool) -> Held | None:
    if is_leaving and before:
        return replace(before, fingerprint="")
    return before if is_kept else None
