"""Fill a draft that another task made: idempotent by name, whatever an earlier try has left in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.memory import Memory, may_be_cleared_since, scope_of
from outbound_transfer.files.attached import AttachedFile, describe_differences, holds_only
from outbound_transfer.files.uploads import FinishedUpload, attach_sources
from outbound_transfer.protocol.errors import AlreadyDelivered, FileConflict

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.delivery.memory_store import MemoryStore
    from outbound_transfer.delivery.observer import DeliveryObserver
    from outbound_transfer.delivery.shared_draft import SharedDraft
    from outbound_transfer.files.sources import Source
    from outbound_transfer.protocol.models import File, Transfer


class FilesTask:
    """One try of a task that attaches files to a shared draft.

    What it has attached in an earlier try stays, if that try has said that it stopped, and the file is the same still.
    Otherwise the file is removed and uploaded again: an upload that nobody waits for may be of another version.
    """

    def __init__(self, draft: SharedDraft, store: MemoryStore, log: Logger, observer: DeliveryObserver) -> None:
        self._draft, self._store, self._log, self._observer = draft, store, log, observer
        self._client, self._facts, self._checking = draft.client, draft.facts, Lock()
        remembered, is_complete = store.begin()
        is_same = remembered is not None and remembered.draft_id == draft.transfer_id
        self._before, self._is_complete = remembered if is_same else None, is_complete
        draft.check_account(self._before.scope.account if self._before else draft.account)
        scope = scope_of(draft.account, draft.client.settings.transfer_api_key)
        files = self._before.files if self._before else {}
        self._memory = Memory(self._facts.writer, scope, Phase.DRAFT, draft.transfer_id, files=files)
        store.save_verified(self._memory)

    def attach(self, find_sources: Callable[..., Sequence[Source]], max_parallel: int) -> list[File]:
        """Make the draft hold these files beside those of other tasks; return the service's record of each.

        :raises FileConflict: the draft holds a file of such a name that this task did not attach, or it was sent
            without these files.
        :raises AlreadyDelivered: it was sent with other files.
        :raises SourceChanged: a file changed while it was read; its record is removed.
        """
        transfer = self._draft.read()
        self._observer.record_transfer(transfer)
        if not transfer.is_draft:
            return self._find_sent(transfer, find_sources)
        sources = find_sources()
        held = self._remove_stale(transfer, sources)
        self._plan(sources, held)

        def on_attached(upload: FinishedUpload) -> None:
            held[upload.source.name] = upload.file
            self._keep(upload)

        missing = [source for source in sources if source.name not in held]
        attach_sources(
            self._client,
            transfer.id,
            missing,
            max_parallel=max_parallel,
            on_attached=on_attached,
            log=self._log,
            check_still_current=self._check_still_current,
        )
        self._hand_on(is_clean=True)
        return [held[source.name] for source in sources]

    def _check_still_current(self) -> None:
        with self._checking:  # before Airflow 3.2, only one thread may talk to Airflow
            self._facts.check_still_running()
            self._store.check_still_own()

    def _remove_stale(self, draft: Transfer, sources: Sequence[Source]) -> dict[str, File]:
        """Remove what is not to be delivered any more, or may be another version; return what stays."""
        before, wanted = self._before, {source.name: source for source in sources}
        trusted = before.files if before and before.phase is Phase.HANDED_ON and self._is_complete else {}
        held = {}
        for file in draft.files or ():
            if file.name in wanted and holds_only([file], trusted, sources):
                held[file.name] = file
                self._record(file.name, trusted[file.name])
            elif (before and file.name in before.files) or (file.name in wanted and not self._is_complete):
                self._client.remove_file(draft.id, file.id, self._check_still_current)
                self._observer.record_file_removed(draft.id, file.name)
                self._log.info("Removed %s from the draft: it is not, or no longer, what is delivered", file.name)
            elif file.name in wanted:
                raise FileConflict(
                    f"The draft holds {file.name!r} ({file.size} bytes), which this task did not attach. Remove it, or "
                    "deliver in a draft of its own."
                )
        return held

    def _plan(self, sources: Sequence[Source], held: dict[str, File]) -> None:
        """Store the names first: what a try that is killed has uploaded is known by them."""
        files = {
            source.name: self._memory.files[source.name] if source.name in held else AttachedFile(source.size)
            for source in sources
        }
        self._memory = msgspec.structs.replace(self._memory, files=files)
        self._store.save(self._memory)

    def _keep(self, upload: FinishedUpload) -> None:
        name, attached = upload.source.name, AttachedFile.of(upload)
        self._memory = msgspec.structs.replace(self._memory, files={**self._memory.files, name: attached})
        self._record(name, attached)

    def _record(self, name: str, file: AttachedFile) -> None:
        self._observer.record_file(self._draft.transfer_id, name, file.size, file.sha256)

    def _hand_on(self, *, is_clean: bool) -> None:
        if is_clean:
            self._memory = msgspec.structs.replace(self._memory, phase=Phase.HANDED_ON)
        self._store.save(self._memory)

    def _find_sent(self, transfer: Transfer, find_sources: Callable[..., Sequence[Source]]) -> list[File]:
        held = {file.name: file for file in transfer.files or ()}
        before = self._before
        if (
            before is None
            or not (before.files or before.phase is Phase.HANDED_ON)
            or not before.files.keys() <= held.keys()
        ):
            raise FileConflict(
                f"Transfer {transfer.id} was sent, and it is not known whether with the files of this task. Nothing is "
                f"attached. To deliver them, trigger a new DAG run."
            )
        gone: list[Any] = []
        if may_be_cleared_since(before, self._facts.writer):
            sources = find_sources(gone)
            if differences := [] if gone else describe_differences(before.files, sources):
                raise AlreadyDelivered(
                    f"This run has already delivered transfer {transfer.id}, with other files: "
                    f"{'; '.join(differences[:5])}. Nothing is attached. To deliver these, trigger a new DAG run."
                )
        self._hand_on(is_clean=before.phase is Phase.HANDED_ON)
        self._log.info("Transfer %s was sent with these files; nothing is attached again", transfer.id)
        return [held[name] for name in before.files]
