"""Make a draft hold exactly the files of a delivery, without uploading a byte twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.delivery import state as states
from outbound_transfer.delivery.attachments import (
    by_name,
    plan_files,
    reject_unknown_files,
    stale_files,
    unwanted_uploads,
)
from outbound_transfer.delivery.checksum import HashingUpload, sha256_of
from outbound_transfer.delivery.parallel import run_uploads
from outbound_transfer.delivery.progress import UploadProgress
from outbound_transfer.protocol import endpoints, flows
from outbound_transfer.protocol.errors import FileConflict

if TYPE_CHECKING:
    from outbound_transfer.delivery.comparison import DraftState
    from outbound_transfer.delivery.session import DeliverySession
    from outbound_transfer.delivery.sources import Source
    from outbound_transfer.delivery.state import DeliveryState, PlannedFile
    from outbound_transfer.protocol.models import File


#: Bytes of an upload from which on the service must have read some: connections and gateways hold back fewer.
ACCEPTED_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class FinishedUpload:
    """A source that is attached.

    :ivar file: the service's record of it.
    :ivar sha256: of its bytes, in hexadecimal.
    :ivar is_still_in_flight: a request of an earlier attempt may still arrive.
    """

    source: Source
    file: File
    sha256: str
    is_still_in_flight: bool


def reason_to_replace(draft: DraftState, sources: Sequence[Source]) -> str:
    """Return why the delivery needs another draft, "" if it does not.

    A call that may still be applied would make this draft, or the transfer that it becomes, other than wanted.
    """
    state, wanted = draft.state, by_name(sources)
    if unwanted_uploads(state.files, wanted):
        return "a file that is no longer delivered may still arrive in it"
    is_as_wanted = wanted.keys() <= draft.attached.keys() and not stale_files(
        state.files, draft.attached, wanted, exclusive=True
    )
    if state.send_started and not is_as_wanted:
        return "a send of it may still be applied, and would send it half changed"
    return ""


class FileAttacher:
    """Attaches the files of one delivery, in this order: stale files go, the plan is stored, the bytes are sent.

    :param max_parallel_uploads: how many files to upload at once; 1 starts no thread.
    """

    def __init__(self, session: DeliverySession, max_parallel_uploads: int) -> None:
        self._session, self._max_parallel = session, max_parallel_uploads

    def attach(self, draft: DraftState, sources: Sequence[Source], *, files: Any, exclusive: bool) -> list[File]:
        """Make the draft hold exactly ``sources``; what it already holds is not uploaded again.

        The largest is attached first, and alone until the service has accepted it. The service checks a file's declared
        length before it reads a byte (413 ``file_too_large``), so a delivery over the account's limit is refused before
        any of it is uploaded, in each try: the limit may have been raised since. The others follow in parallel.

        :param files: the operator's argument, normalized.
        :param exclusive: refuse files on the draft that this delivery did not plan.
        :return: the service's record of each source.
        :raises FileConflict: a file that this delivery did not attach is in the way, or may still get in the way.
        :raises SourceChanged: a file changed while it was read; its record is removed.
        """
        state, attached, wanted = draft.state, draft.attached, by_name(sources)
        if draft.is_record_missing and draft.transfer.is_draft:
            reject_unknown_files(state.files, attached, wanted)
        if unwanted := unwanted_uploads(state.files, wanted):
            raise FileConflict(
                f"An earlier try started to upload {', '.join(unwanted)} to draft {state.transfer_id}, which may still "
                "arrive there and is no longer delivered. Discard the draft, and clear the task that creates it."
            )
        self._remove_stale(draft, sources, exclusive=exclusive)
        # Stored only now: until a stale file is gone, the stored plan must still identify it.
        before, state.files = state.files, plan_files(sources, attached, state.files)
        state.files_digest = states.digest(files, state.salt)
        self._session.save(state)
        self._record_attached(draft, sources)
        self._upload_missing(draft, [source for source in sources if source.name not in attached], before)
        return [attached[source.name] for source in sources]

    def _remove_stale(self, draft: DraftState, sources: Sequence[Source], *, exclusive: bool) -> None:
        state, session = draft.state, self._session
        for file in stale_files(state.files, draft.attached, by_name(sources), exclusive=exclusive):
            session.check_still_current()
            session.client.perform(endpoints.remove_file(state.transfer_id, file.id))
            session.observer.record_file_removed(state.transfer_id, file.name)
            session.log.info("Removed %s from the draft: it is not part of the delivery now", file.name)
            del draft.attached[file.name]

    def _record_attached(self, draft: DraftState, sources: Sequence[Source]) -> None:
        """Record the files that the draft already holds, with their checksums."""
        for source in sources:
            if source.name in draft.attached:
                plan = draft.state.files[source.name]
                plan.sha256 = plan.sha256 or sha256_of(source)  # the try that attached it did not store it
                self._record(draft.state, source)

    def _upload_missing(self, draft: DraftState, missing: Sequence[Source], before: Mapping[str, PlannedFile]) -> None:
        accepted = Future[None]()
        uploads = [
            partial(self._upload, draft.state, source, accepted, may_be_in_flight=source.name in before)
            for source in sorted(missing, key=lambda source: source.size, reverse=True)
        ]
        if min(self._max_parallel, len(uploads)) < 2:
            for upload in uploads:
                self._finish(draft, upload())
            return
        run_uploads(
            uploads,
            self._max_parallel,
            first_accepted=accepted,
            on_finished=partial(self._finish, draft),
            stop=self._session.client.stop,
            log=self._session.log,
        )

    def _upload(
        self, state: DeliveryState, source: Source, accepted: Future[None], *, may_be_in_flight: bool
    ) -> FinishedUpload:
        """Upload one file, perhaps in a thread of its own: the shared state is only read.

        :param accepted: is done once the service has read bytes of any file, the first of which is the largest.
        """
        log_progress = UploadProgress(source.name, source.size, self._session.log)

        def on_progress(sent: int) -> None:
            log_progress(sent)
            if sent >= ACCEPTED_BYTES and not accepted.done():
                accepted.set_result(None)

        hashing = HashingUpload(source.upload(on_progress))
        flow = flows.attach(
            state.transfer_id,
            hashing.upload,
            check_unchanged=source.check_unchanged,
            check_still_current=self._session.check_still_current,
            may_be_in_flight=may_be_in_flight,
            earlier_sizes=state.files[source.name].earlier_sizes,
        )
        file, is_still_in_flight = self._session.client.run(flow)
        log_progress.done()
        return FinishedUpload(source, file, hashing.sha256, is_still_in_flight or may_be_in_flight)

    def _finish(self, draft: DraftState, upload: FinishedUpload) -> None:
        """Store what became of an upload, so that a try that ends before the next one does not lose it."""
        state, name = draft.state, upload.source.name
        plan = state.files[name]
        plan.file_id, plan.sha256, plan.may_be_in_flight = upload.file.id, upload.sha256, upload.is_still_in_flight
        draft.attached[name] = upload.file
        self._session.save(state)
        self._record(state, upload.source)

    def _record(self, state: DeliveryState, source: Source) -> None:
        plan = state.files[source.name]
        self._session.observer.record_file(
            state.transfer_id, source.name, plan.size, plan.sha256, is_only_version=plan.is_only_version
        )
