"""A delivery in a task: a draft that is made once, filled with just the right files, and sent once.

What makes it survive a crash is the order of things: that the task has begun is stored, and seen to be stored, before
anything else; that a draft is about to be created before the create, and its id before anything else happens to it; a
file's plan before its first byte; the intention to send before the send. What is found under a remembered id is
compared with what is meant. Where nothing is remembered though something should be, the service is asked what it sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbound_transfer import state as states
from outbound_transfer.attachments import by_name, differences, plan_files, stale_files, unwanted_uploads
from outbound_transfer.digests import Digest, sha256_of
from outbound_transfer.ledger.journal import Journal
from outbound_transfer.logs import Log
from outbound_transfer.progress import Progress
from outbound_transfer.protocol import calls, flows
from outbound_transfer.protocol.errors import (
    FileConflict,
    MalformedAnswer,
    NothingMatches,
    OutboundTransferError,
    ServiceError,
    SourceMissing,
    WrongTransfer,
)
from outbound_transfer.protocol.identity import holds_just, identity_of
from outbound_transfer.protocol.models import DRAFT, File, Transfer
from outbound_transfer.state import DeliveryState, Match, StateStore

if TYPE_CHECKING:
    from outbound_transfer.client import Client
    from outbound_transfer.protocol.models import NewTransfer
    from outbound_transfer.sources import Source
    from outbound_transfer.task_run import TaskRun


class AlreadyDelivered(OutboundTransferError):
    """This run has sent a transfer, or may have, and may not send what it is asked for now."""


@dataclass
class Draft:
    """A draft, or what became of it, with what this task knows of it.

    :ivar held: the files that the service holds for it, by name.
    """

    state: DeliveryState
    transfer: Transfer
    held: dict[str, File]


class Delivery:
    """The steps of one delivery, each of which goes on from where an earlier try of the task stopped.

    :param run: the try of the task that takes them.
    :param journal: told of every step.
    """

    def __init__(
        self, client: Client, store: StateStore, log: Log, *, run: TaskRun, journal: Journal | None = None
    ) -> None:
        self.client, self.store, self.log, self.run = client, store, log, run
        self.journal = journal or Journal()
        self._account, self._key = client.settings.account, client.settings.transfer_api_key
        self._doubt, self._drafts = "", 2
        self._state: DeliveryState | None = None

    @contextmanager
    def telling_of_a_send(self) -> Iterator[None]:
        """Whatever ends the try in the block says so where an earlier try may have sent a transfer."""
        try:
            yield
        except OutboundTransferError as error:
            state = self._state
            if state is not None and state.sending and not error.doubt and state.transfer_id not in str(error):
                error.doubt = calls.doubt_of_send(state.transfer_id)
            raise

    # What earlier tries have come to.

    def earlier(self, new: NewTransfer, files: Any = None, *, resend: bool = False) -> Draft | None:
        """What an earlier try of just this delivery made, a draft or a sent transfer; None where there is none.

        A draft that was made from something else is discarded.

        :param files: as they are asked for.
        :raises AlreadyDelivered: something else was sent in this run, or what became of the draft cannot be known.
        """
        state = self._remember(new, files)
        if state is None or not state.transfer_id:
            return None
        self.journal.about(state.transfer_id)
        transfer, why_not = self._find(state)
        if transfer is not None and transfer.is_draft:
            return self._draft_of(state, transfer, new)
        if self._is_asked_again(state, resend=resend):
            self.log.warning("Sending again on purpose (resend=True): %s was this run's delivery", state.transfer_id)
            return None
        if transfer is None:
            self._refuse_lost(state, why_not)
            return None
        if state.match(new, self._key) is Match.OTHER:
            raise _delivered_other(transfer.id, "made from other input than it has now")
        _check_sent(state, transfer)
        self.log.info("Going on with transfer %s (%s) of an earlier try", transfer.id, transfer.status)
        return Draft(state, transfer, by_name(transfer.files))

    def _remember(self, new: NewTransfer, files: Any) -> DeliveryState | None:
        """What the newest try has stored; and whether the service has to be asked, as it does not rule a send out.

        From then on, something is stored for this try.
        """
        at, state = states.newest(self.store, self.run.try_number)
        # A try stores something before anything else, so one that has left nothing is one of which much may be lost.
        is_whole = state is not None and at >= self.run.try_number - 1
        if not is_whole or not state or not self._is_of_just_this(state, new, files):
            self._doubt = self.run.reason_for_a_past(remembers=is_whole)
        if state is None and not self._doubt:
            states.save_proved(self.store, self._made_from(new, files))
        elif state is not None and is_whole:  # a gap must stay one until the service was asked
            states.save(self.store, state, self.run.try_number)
        # A create that was begun by an earlier try has perhaps left a draft that nothing leads to.
        if state.is_creating if state else self.run.try_number > 1:
            self._drafts = 1
        self._state = state
        return state

    def _is_of_just_this(self, state: DeliveryState, new: NewTransfer, files: Any) -> bool:
        return state.match(new, self._key) is Match.SAME and state.files_asked == states.digest(files, state.salt)

    def _made_from(self, new: NewTransfer, files: Any) -> DeliveryState:
        return states.made_from(
            new, files, self._key, account=self._account, clears=self.run.clears, try_number=self.run.try_number
        )

    def check_not_sent(self, new: NewTransfer, sources: Sequence[Source], *, resend: bool) -> None:
        """Where a send of just this is not ruled out by what is remembered, see that there was none.

        :raises AlreadyDelivered: the service has sent what may be this very delivery.
        """
        if self._doubt and not (resend and self.run.is_first_after_clear()):
            self._check_not_sent(new, {source.name: source.size for source in sources}, self._doubt)

    def _find(self, state: DeliveryState) -> tuple[Transfer | None, str]:
        """The transfer of an earlier try, or why it is out of reach, whatever has the id now."""
        if state.account != self._account:
            return None, f"the connection leads to {self._account} now, and led to {state.account} then"
        transfer = self.client.run(flows.find_transfer(state.transfer_id))
        if transfer is None:
            return None, "the connection's key does not see it any more"
        if not state.is_about(identity_of(transfer)):
            return None, "under its id is another transfer now, to other recipients or with another subject"
        _check_holds_known(transfer)
        self.journal.saw(transfer)
        return transfer, ""

    def _draft_of(self, state: DeliveryState, transfer: Transfer, new: NewTransfer) -> Draft | None:
        if state.match(new, self._key) is Match.SAME:
            self.log.info("Going on with draft %s of an earlier try", transfer.id)
            return Draft(state, transfer, by_name(transfer.files))
        self.discard(transfer.id, "it was made from other input")
        return None

    def _is_asked_again(self, state: DeliveryState, *, resend: bool) -> bool:
        """Whether the task was cleared in order to send again.

        :raises AlreadyDelivered: something in the run was cleared, and it cannot be told whether this task was.
        """
        if not resend:
            return False
        is_cleared = self._was_cleared(state)
        if is_cleared is None:
            raise AlreadyDelivered(
                f"Transfer {state.transfer_id} was sent, and it cannot be told whether this task or another of its run "
                "was cleared since. Nothing is sent again; to do so, clear this task once more."
            )
        return is_cleared

    def _was_cleared(self, state: DeliveryState) -> bool | None:
        """Whether this try is a clear's; None where only a clear of something in the run is known of."""
        (max_tries, clear_number), (max_tries_then, clear_number_then) = self.run.clears, state.clears
        if max_tries != max_tries_then:
            return True
        if clear_number == clear_number_then:
            return False
        return None

    def paused(self, new: NewTransfer) -> Draft | None:
        """The draft that this very try was busy with when it deferred, without asking the service again."""
        state = states.load(self.store, self.run.try_number)
        is_ours = state and state.try_number == self.run.try_number and state.account == self._account
        if state is None or not is_ours or not state.transfer_id or state.match(new, self._key) is not Match.SAME:
            return None
        held = {name: File(file.file_id, name, file.size) for name, file in state.files.items() if file.file_id}
        transfer = Transfer(state.transfer_id, DRAFT, new.subject)
        self.journal.saw(transfer, recipients=len(new.recipients))
        return Draft(state, transfer, held)

    def draft(self, transfer_id: str) -> Draft:
        """A draft that another task made, with what this task has attached to it so far.

        :raises WrongTransfer: the connection leads elsewhere than it did, or the id is another transfer's now.
        """
        self.journal.about(transfer_id)
        state = states.load(self.store, self.run.try_number)
        if state is None or state.transfer_id != transfer_id:
            state = self._new_state(transfer_id)
        self.check_account(transfer_id, state.account, is_sending=state.sending)
        transfer = self.client.perform(calls.get_transfer(transfer_id))
        self._check_identity(state, transfer)
        _check_holds_known(transfer)
        self.journal.saw(transfer)
        return Draft(state, transfer, by_name(transfer.files))

    def _new_state(self, transfer_id: str) -> DeliveryState:
        return DeliveryState(
            transfer_id,
            salt=states.new_salt(),
            account=self._account,
            clears=self.run.clears,
            try_number=self.run.try_number,
        )

    def check_account(self, transfer_id: str, account: str, *, is_sending: bool = False) -> None:
        """:raises WrongTransfer: the transfer was made in another account than the connection leads to."""
        if account != self._account:
            raise WrongTransfer(
                f"The connection leads to {self._account}, and led to {account} when the run began with transfer "
                f"{transfer_id}{', perhaps sent there' if is_sending else ''}. Nothing is done here."
            )

    def _check_identity(self, state: DeliveryState, transfer: Transfer) -> None:
        if not state.is_about(identity_of(transfer)):
            raise WrongTransfer(
                f"Under the id {state.transfer_id} is another transfer now, to other recipients or with another subject"
                f"{'; the one that was meant may have been sent' if state.sending else ''}."
            )
        state.identity = states.digest(identity_of(transfer), state.salt)

    def _refuse_lost(self, state: DeliveryState, why: str) -> None:
        if state.sending:
            raise AlreadyDelivered(
                f"Transfer {state.transfer_id} was sent by an earlier try, or may have been, and {why}. Look in the "
                "service's web application. To send anew, set resend=True and clear the task."
            )
        self.journal.removed(state.transfer_id)
        self.log.warning("Draft %s of an earlier try is left alone, as %s; making a new one", state.transfer_id, why)

    def discard(self, transfer_id: str, why: str) -> None:
        """Remove a draft of an earlier try.

        :raises AlreadyDelivered: it was sent.
        """
        if not self.client.run(flows.discard_draft(transfer_id)):
            raise _delivered_other(transfer_id, why)
        self.journal.removed(transfer_id)
        self.log.info("Draft %s is discarded: %s", transfer_id, why)

    # Creating.

    def create(self, new: NewTransfer, files: Any = None) -> Draft:
        """A new draft, its id stored before anything is done with it.

        :param files: as they were asked for.
        :raises StateLost: the state store does not keep what it is given.
        """
        state = self._made_from(new, files)
        state.is_creating = True
        states.save_proved(self.store, state)
        transfer = self.client.run(flows.create_draft(new, self._drafts))
        state.transfer_id, state.is_creating = transfer.id, False
        state.identity = states.digest(identity_of(transfer), state.salt)
        states.save(self.store, state)
        self.journal.saw(transfer)
        self.log.info("Created draft %s for %d recipients", transfer.id, len(new.recipients))
        return Draft(state, transfer, {})

    def _check_not_sent(self, wanted: NewTransfer | Transfer, files: dict[str, int], reason: str) -> None:
        """Where nothing is remembered though something may have been sent, the service knows whether it was."""
        self.log.info("Asking the service whether this was sent before: %s", reason)
        sent = self.client.run(flows.find_sent(identity_of(wanted), files, self.run.began()))
        if sent is not None:
            raise AlreadyDelivered(
                f"Transfer {sent.id}, sent at {sent.sent_at}, has this delivery's subject, recipients and files, and "
                f"{reason}. It may be this very delivery, so nothing is sent. If it is another one, set resend=True "
                "and clear the task."
            )

    # Attaching.

    def attach(self, draft: Draft, sources: Sequence[Source], *, files: Any = None, only_ours: bool) -> list[File]:
        """Make the draft hold just ``sources``, and send no byte that it already holds.

        The largest is attached first. The service checks a file's declared length before it reads a byte (413
        ``file_too_large``), so a delivery over the account's limit is refused before any of it is uploaded, in each
        try anew: the limit may have been raised since.

        :param files: as they were asked for.
        :param only_ours: refuse files on the draft that this delivery did not plan.
        :return: the service's record of each source.
        :raises FileConflict: a file that this delivery did not put there is in the way, or may still get in the way.
        :raises SourceChanged: a file changed while it was read; its record is removed.
        """
        state, held, wanted = draft.state, draft.held, by_name(sources)
        if unwanted := unwanted_uploads(state.files, held, wanted):
            raise FileConflict(
                f"An earlier try began to upload {', '.join(unwanted)} to draft {state.transfer_id}, which may still "
                "arrive there, and is not delivered any more. Discard the draft, and clear the task that creates it."
            )
        for file in stale_files(state.files, held, wanted, only_ours=only_ours):
            self.client.perform(calls.remove_file(state.transfer_id, file.id))
            self.journal.drops(state.transfer_id, file.name)
            self.log.info("Removed %s from the draft: it is not what is delivered now", file.name)
            del held[file.name]
        # Written only now: until a stale file is gone, the plan must go on saying what it is.
        before, state.files = state.files, plan_files(sources, held, state.files)
        state.files_asked = states.digest(files, state.salt)
        self._save(state)
        for source in sources:
            if source.name in held:
                plan = state.files[source.name]
                plan.sha256 = plan.sha256 or sha256_of(source)  # it was attached by a try that could not say
                self._note_file(state, source)
        missing = [source for source in sources if source.name not in held]
        try:
            for source in sorted(missing, key=lambda source: source.size, reverse=True):
                held[source.name] = self._attach_one(state, source, begun_before=source.name in before)
        finally:
            # A deferral in between goes on from here without asking the service what the draft holds.
            self._save(state)
        return [held[source.name] for source in sources]

    def _attach_one(self, state: DeliveryState, source: Source, *, begun_before: bool) -> File:
        progress, plan = Progress(source.name, source.size, self.log), state.files[source.name]
        digest = Digest(source.upload(progress))
        flow = flows.attach(
            state.transfer_id,
            digest.upload,
            unchanged=source.check_unchanged,
            begun_before=begun_before,
            earlier_sizes=plan.earlier_sizes,
        )
        file, may_land_again = self.client.run(flow)
        plan.file_id, plan.sha256, plan.may_land = file.id, digest.sha256, may_land_again or begun_before
        self._note_file(state, source)
        progress.done()
        return file

    def _note_file(self, state: DeliveryState, source: Source) -> None:
        plan = state.files[source.name]
        self.journal.holds(state.transfer_id, source.name, plan.size, plan.sha256, sole=plan.is_only_version)

    def reason_for_another(self, draft: Draft, sources: Sequence[Source]) -> str:
        """Why another draft is needed: what may still land in this one, or with it, is not what is wanted; or ""."""
        state, wanted = draft.state, by_name(sources)
        if unwanted_uploads(state.files, draft.held, wanted):
            return "a file that is not delivered any more may still arrive in it"
        is_as_wanted = wanted.keys() <= draft.held.keys() and not stale_files(
            state.files, draft.held, wanted, only_ours=True
        )
        if state.sending and not is_as_wanted:
            return "a send of it may still land, and would meet it half changed"
        return ""

    def check_same_files(self, draft: Draft, files: Any, find: Callable[[], Sequence[Source]]) -> None:
        """After a clear, see that what was sent is what the files are now; an automatic retry asks for nothing new.

        :param files: as they are asked for now.
        :param find: finds them.
        :raises AlreadyDelivered: they are others.
        """
        state = draft.state
        if self._was_cleared(state) is False:
            return
        try:
            sources = find()
        except (SourceMissing, NothingMatches) as error:
            if states.digest(files, state.salt) != state.files_asked:
                raise _delivered_other(state.transfer_id, "with files asked for in another way") from error
            self.log.warning("What was sent cannot be compared with the files, which are gone: %s", error)
            return
        if others := differences(state.files, sources):
            raise _delivered_other(state.transfer_id, f"with other files: {'; '.join(others[:5])}")

    # Sending.

    def send_draft(self, transfer_id: str, *, resumed: bool, resend: bool = False) -> Transfer:
        """Send a draft that another task made; ``resumed`` as of :meth:`.OutboundTransferOperator.work`.

        :raises AlreadyDelivered: this task has sent another transfer in this run.
        """
        self.journal.about(transfer_id)
        at, state = states.newest(self.store, self.run.try_number)
        self._state = state
        if state is None or state.transfer_id != transfer_id or at < self.run.try_number - 1:
            self._refuse_another(state, transfer_id, resend=resend)
            remembers = state is not None and at >= self.run.try_number - 1
            is_same = state is not None and state.transfer_id == transfer_id
            state = state if state and is_same else self._new_state(transfer_id)
            if not (resend and self.run.is_first_after_clear()) and (sent := self._sent_before(state, remembers)):
                return sent
        self.check_account(transfer_id, state.account, is_sending=state.sending)
        if state.sending and not resumed:
            transfer = self.client.perform(calls.get_transfer(transfer_id))
            self._check_identity(state, transfer)
            if not transfer.is_draft:
                self.log.info("Transfer %s was sent by an earlier try", transfer.id)
                self.journal.saw(transfer)
                return transfer
        return self.send(state)

    def _sent_before(self, state: DeliveryState, remembers: bool) -> Transfer | None:
        """The transfer where it was sent already; None where neither it nor its like was sent in this run."""
        if not (reason := self.run.reason_for_a_past(remembers=remembers)):
            return None
        transfer = self.client.perform(calls.get_transfer(state.transfer_id))
        if not transfer.is_draft:
            self.log.info("Transfer %s was sent before", transfer.id)
            self.journal.saw(transfer)
            return transfer
        _check_holds_known(transfer)
        self._check_not_sent(transfer, {file.name: file.size for file in transfer.files or ()}, reason)
        return None

    def _refuse_another(self, state: DeliveryState | None, transfer_id: str, *, resend: bool) -> None:
        is_another = state is not None and state.transfer_id != transfer_id
        if state and is_another and state.sending and not self._is_asked_again(state, resend=resend):
            raise AlreadyDelivered(
                f"This task has sent transfer {state.transfer_id} in this run, or may have, and is asked to send "
                f"{transfer_id} now. Nothing is sent. To send this one too, set resend=True and clear the task."
            )

    def send(self, state: DeliveryState) -> Transfer:
        """Send the draft, or learn that it was sent.

        :raises WrongTransfer: it was sent, and the service shows something else than what was meant.
        """
        send = calls.send_transfer(state.transfer_id)
        was_in_doubt, state.sending = state.sending, True
        # A try that Airflow has given up can no longer write its state, so it stops here and cannot send.
        self._save(state)
        self.run.check_wanted()
        try:
            transfer = self.client.perform(send)
        except ServiceError as error:
            if not error.doubt:
                # Refused, so this send did nothing: the draft may be discarded and made anew.
                state.sending = was_in_doubt
                self._save(state)
            raise
        self.journal.saw(transfer)
        self.log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        _check_sent(state, transfer)
        return transfer

    def _save(self, state: DeliveryState) -> None:
        state.try_number = self.run.try_number
        states.save(self.store, state)


def _check_sent(state: DeliveryState, transfer: Transfer) -> None:
    """See that a transfer that was sent is what was meant."""
    planned = {name: file.size for name, file in state.files.items()}
    if transfer.id != state.transfer_id or not state.is_about(identity_of(transfer)):
        wrong = f"the service's answer is of {transfer.id}, to other recipients or with another subject"
    elif planned and transfer.files is not None and not holds_just(transfer, planned):
        wrong = f"the service says that it holds {sorted(file.name for file in transfer.files)}"
    else:
        return
    raise WrongTransfer(
        f"Transfer {state.transfer_id} was sent, but {wrong}, and {sorted(planned) or 'another'} was meant. Look "
        "in the service's web application, where it can be canceled."
    )


def _check_holds_known(transfer: Transfer) -> None:
    """See that the service says which files a draft holds: that it says nothing of them is not that it has none."""
    if transfer.is_draft and transfer.files is None:
        raise MalformedAnswer(f"get: the answer does not say which files draft {transfer.id} holds")


def _delivered_other(transfer_id: str, how: str) -> AlreadyDelivered:
    return AlreadyDelivered(
        f"This run has already delivered transfer {transfer_id}, {how}. "
        "Trigger a new DAG run to deliver this, or set resend=True and clear the task."
    )
