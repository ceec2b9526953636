"""A delivery in a task: a draft that is made once, filled with just the right files, and sent once.

What makes it survive a crash is the order of things: the draft's id is stored before anything else happens to it,
a file's plan before its first byte, the intention to send before the send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from outbound_transfer import state as states
from outbound_transfer.digests import Digest
from outbound_transfer.ledger.journal import Journal
from outbound_transfer.logs import Log
from outbound_transfer.progress import Progress
from outbound_transfer.protocol import calls, flows
from outbound_transfer.protocol.errors import CallError, FileConflict, OutboundTransferError, ServiceError
from outbound_transfer.protocol.models import DRAFT, File, Transfer
from outbound_transfer.state import DeliveryState, PlannedFile, StateStore

if TYPE_CHECKING:
    from outbound_transfer.client import Client
    from outbound_transfer.protocol.models import NewTransfer
    from outbound_transfer.sources import Source

Named = TypeVar("Named", "File", "Source")


class AlreadyDelivered(OutboundTransferError):
    """This run has sent a transfer, and may not send what it is asked for now."""


@dataclass
class Draft:
    """A draft, or what became of it, with what this task knows of it.

    :ivar held: the files that the service holds for it, by name.
    :ivar is_done: an earlier try attached just what is asked for, and the transfer was sent since.
    """

    state: DeliveryState
    transfer: Transfer
    held: dict[str, File]
    is_done: bool = False


class Delivery:
    """The steps of one delivery, each of which goes on from where an earlier try of the task stopped.

    :param clears: how often the task was cleared, in any measure that only a clear changes.
    :param try_number: of the task.
    :param journal: told of every step.
    """

    def __init__(
        self,
        client: Client,
        store: StateStore,
        log: Log,
        *,
        clears: int,
        try_number: int,
        journal: Journal | None = None,
    ) -> None:
        self.client, self.store, self.log = client, store, log
        self.clears, self.try_number = clears, try_number
        self.journal = journal or Journal()

    def earlier(self, new: NewTransfer, files: Any, *, resend: bool = False) -> Draft | None:
        """What an earlier try of just this delivery made, a draft or a sent transfer; None where there is none.

        A draft that was made from something else is discarded.

        :raises AlreadyDelivered: something else was sent in this run, or what became of the draft cannot be known.
        """
        state = states.load(self.store)
        if state is None:
            return None
        self.journal.about(state.transfer_id)
        with _told_if_in_doubt(state):
            transfer = self.client.run(flows.find_transfer(state.transfer_id))
        if transfer is not None:
            self.journal.saw(transfer)
        if resend and state.clears != self.clears and (transfer is None or not transfer.is_draft):
            self.log.warning("Sending again on purpose (resend=True): %s was this run's delivery", state.transfer_id)
            return None
        if transfer is None:
            self._refuse_lost(state)
            return None
        if state.is_of(new, files):
            self.log.info("Going on with transfer %s (%s) of an earlier try", transfer.id, transfer.status)
            return Draft(state, transfer, _by_name(transfer.files))
        self._drop(transfer)
        return None

    def paused(self, new: NewTransfer, files: Any) -> Draft | None:
        """The draft that this very try was busy with when it deferred, without asking the service again."""
        state = states.load(self.store)
        if state is None or state.try_number != self.try_number or not state.is_of(new, files):
            return None
        held = {name: File(file.file_id, name, file.size) for name, file in state.files.items() if file.file_id}
        transfer = Transfer(state.transfer_id, DRAFT, new.subject)
        self.journal.saw(transfer, recipients=len(new.recipients))
        return Draft(state, transfer, held)

    def draft(self, transfer_id: str, files: Any) -> Draft:
        """A draft that another task made, with what this task has attached to it so far."""
        self.journal.about(transfer_id)
        saved = states.load(self.store)
        if saved is None or saved.transfer_id != transfer_id:
            saved = DeliveryState(transfer_id)
        salt = states.new_salt()
        state = DeliveryState(transfer_id, salt, states.fingerprint(None, files, salt), files=saved.files)
        transfer = self.client.perform(calls.get_transfer(transfer_id))
        self.journal.saw(transfer)
        held = _by_name(transfer.files)
        is_done = not transfer.is_draft and saved.is_of(None, files) and saved.files.keys() <= held.keys()
        return Draft(state, transfer, held, is_done)

    def _refuse_lost(self, state: DeliveryState) -> None:
        if state.sending:
            raise AlreadyDelivered(
                f"Transfer {state.transfer_id} may have been sent by an earlier try, and this key cannot see it any "
                "more. Look in the service's web application. If it was not sent, clear the task with resend=True."
            )
        self.journal.removed(state.transfer_id)
        self.log.info("Draft %s of an earlier try is gone (discarded or too old); making a new one", state.transfer_id)

    def _drop(self, transfer: Transfer) -> None:
        if not self.client.run(flows.discard_draft(transfer.id)):
            raise AlreadyDelivered(
                f"This run has already delivered transfer {transfer.id}, made from other input than it has now. "
                "Trigger a new DAG run to deliver this, or set resend=True and clear the task."
            )
        self.journal.removed(transfer.id)
        self.log.info("Draft %s was made from other input: discarded", transfer.id)

    def create(self, new: NewTransfer, files: Any) -> Draft:
        """A new draft, its id stored before anything is done with it."""
        transfer = self.client.perform(calls.create_transfer(new))
        salt = states.new_salt()
        state = DeliveryState(
            transfer_id=transfer.id,
            salt=salt,
            fingerprint=states.fingerprint(new, files, salt),
            clears=self.clears,
            try_number=self.try_number,
        )
        states.save(self.store, state)
        self.journal.saw(transfer)
        self.log.info("Created draft %s for %d recipients", transfer.id, len(new.recipients))
        return Draft(state, transfer, {})

    def attach(self, draft: Draft, sources: Sequence[Source], *, only_ours: bool) -> list[File]:
        """Make the draft hold just ``sources``, and send no byte that it already holds.

        The largest is attached first. The service checks a file's declared length before it reads a byte (413
        ``file_too_large``), so a delivery over the account's limit is refused before any of it is uploaded, in each
        try anew: the limit may have been raised since.

        :param only_ours: refuse files on the draft that this delivery did not plan.
        :return: the service's record of each source.
        :raises FileConflict: a file that this delivery did not put there is in the way.
        :raises SourceChanged: a file changed while it was read; its record is removed.
        """
        state, held = draft.state, draft.held
        for file in _stale(state.files, held, _by_name(sources), only_ours=only_ours):
            self.client.perform(calls.remove_file(state.transfer_id, file.id))
            self.journal.drops(state.transfer_id, file.name)
            self.log.info("Removed %s from the draft: it is not what is delivered now", file.name)
            del held[file.name]
        # Written only now: until a stale file is gone, the plan must go on saying what it is.
        before, state.files = state.files, _plan(sources, held, state.files)
        state.try_number = self.try_number
        states.save(self.store, state)
        for source in sources:
            if source.name in held:
                self._note_file(state, source)
        missing = [source for source in sources if source.name not in held]
        try:
            for source in sorted(missing, key=lambda source: source.size, reverse=True):
                held[source.name] = self._attach_one(state, source, begun_before=source.name in before)
        finally:
            # A deferral in between goes on from here without asking the service what the draft holds.
            states.save(self.store, state)
        return [held[source.name] for source in sources]

    def _attach_one(self, state: DeliveryState, source: Source, *, begun_before: bool) -> File:
        progress = Progress(source.name, source.size, self.log)
        upload = source.upload(progress)
        digest = Digest(upload) if self.journal.is_kept else None
        flow = flows.attach(
            state.transfer_id,
            digest.upload if digest else upload,
            unchanged=source.check_unchanged,
            begun_before=begun_before and state.files[source.name].sole,
        )
        file = self.client.run(flow)
        state.files[source.name].file_id = file.id
        state.files[source.name].sha256 = digest.sha256 if digest else ""
        self._note_file(state, source)
        progress.done()
        return file

    def _note_file(self, state: DeliveryState, source: Source) -> None:
        plan = state.files[source.name]
        self.journal.holds(state.transfer_id, source.name, plan.size, plan.sha256, sole=plan.sole)

    def send_draft(self, transfer_id: str, *, resumed: bool) -> Transfer:
        """Send a draft that another task made; ``resumed`` as of :meth:`.OutboundTransferOperator.work`."""
        self.journal.about(transfer_id)
        state = states.load(self.store)
        if state is None or state.transfer_id != transfer_id:
            state = DeliveryState(transfer_id)
        if state.sending and not resumed:
            with _told_if_in_doubt(state):
                transfer = self.client.perform(calls.get_transfer(transfer_id))
            if not transfer.is_draft:
                self.log.info("Transfer %s was sent by an earlier try", transfer.id)
                self.journal.saw(transfer)
                return transfer
        return self.send(state)

    def send(self, state: DeliveryState) -> Transfer:
        """Send the draft, or learn that it was sent."""
        state.sending = True
        # A try that Airflow has given up can no longer write its state, so it stops here and cannot send.
        states.save(self.store, state)
        try:
            transfer = self.client.perform(calls.send_transfer(state.transfer_id))
        except ServiceError as error:
            if not error.doubt:
                # Refused, so nothing was sent: the draft may be discarded and made anew.
                state.sending = False
                states.save(self.store, state)
            raise
        self.journal.saw(transfer)
        self.log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        return transfer


@contextmanager
def _told_if_in_doubt(state: DeliveryState) -> Iterator[None]:
    """An error says that an earlier try may have sent the transfer, where one may have."""
    try:
        yield
    except CallError as error:
        if state.sending:
            error.doubt = calls.doubt_of_send(state.transfer_id)
        raise


def _plan(
    sources: Sequence[Source], held: Mapping[str, File], before: Mapping[str, PlannedFile]
) -> dict[str, PlannedFile]:
    """What will be attached; ``before`` is the plan of the earlier try."""
    plan = {}
    for source in sources:
        file, old = held.get(source.name), before.get(source.name)
        sole = old is None or (old.sole and (old.size, old.version) == (source.size, source.version))
        # A file that is still held is the one that was planned.
        sha256 = old.sha256 if file and old else ""
        plan[source.name] = PlannedFile(
            source.size, source.version, file.id if file else "", sole, location=source.location, sha256=sha256
        )
    return plan


def _by_name(things: Iterable[Named] | None) -> dict[str, Named]:
    return {thing.name: thing for thing in things or ()}


def _stale(
    planned: Mapping[str, PlannedFile], held: Mapping[str, File], sources: Mapping[str, Source], *, only_ours: bool
) -> list[File]:
    """The files on the draft that must go before it can hold just ``sources``.

    :raises FileConflict: one that this delivery did not put there is in the way.
    """
    stale = []
    for name, file in held.items():
        plan, source = planned.get(name), sources.get(name)
        if plan is None:
            if _is_foreign(file, source, only_ours=only_ours):
                raise FileConflict(
                    f"The draft holds {name!r} ({file.size} bytes), which this delivery did not attach. "
                    "Remove it, or deliver in a draft of its own."
                )
            if source is not None:
                stale.append(file)
        elif (
            source is None
            or (plan.size, plan.version) != (source.size, source.version)
            or not plan.is_attached_as(file)
        ):
            stale.append(file)
    return stale


def _is_foreign(file: File, source: Source | None, *, only_ours: bool) -> bool:
    # Another size is plainly an earlier state of the file; the same size might be anything, and is not guessed at.
    return only_ours if source is None else file.size == source.size
