"""Find out what earlier tries of a task did: from the task's state store, and if it has gaps, from the service.

The state store may lose what was written to it, so an empty store is not evidence that nothing was sent. Each try
stores something before it does anything else: if a try left nothing, any of its state may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from outbound_transfer.delivery import state as states
from outbound_transfer.delivery.attachments import by_name
from outbound_transfer.delivery.comparison import (
    AlreadyDelivered,
    DraftState,
    check_sent,
    require_file_list,
)
from outbound_transfer.delivery.state import DeliveryState, Match, PossibleSend
from outbound_transfer.delivery.task_run import made_transfer
from outbound_transfer.protocol import endpoints, flows
from outbound_transfer.protocol.errors import WrongTransfer
from outbound_transfer.protocol.flows import DiscardOutcome
from outbound_transfer.protocol.identity import (
    Identity,
    KnownIdentity,
    identity_of,
    known_identity_of,
    may_be_equal,
    may_have_had,
)
from outbound_transfer.protocol.models import DRAFT, File, Transfer, UnreadableRow, to_epoch

if TYPE_CHECKING:
    from outbound_transfer.delivery.session import DeliverySession
    from outbound_transfer.delivery.sources import Source
    from outbound_transfer.protocol.models import NewTransfer


class DeliveryHistory:
    """The earlier tries of one task.

    :ivar latest: the state that the newest of them stored; None before it is loaded, or if there is none.
    :ivar possible_send: why this very delivery may have been sent before, though the store does not say so.
    :ivar overruled: the same, if the task was cleared to send again (``resend``), so that it does not count.
    :ivar replaced: what the task has sent, if it is asked to send once more.
    :ivar first_transfer: what this delivers again, as another index, an old name or an earlier try of the task may
        have, to others of its recipients; None if it is no second delivery.
    :ivar max_drafts: how many drafts the next create may leave at the service in total; see
        :func:`.endpoints.create_transfer`.
    """

    def __init__(self, session: DeliverySession) -> None:
        self._session = session
        self.latest: DeliveryState | None = None
        self.max_drafts = 2
        self.possible_send: PossibleSend | None = None
        self.overruled: PossibleSend | None = None
        self.replaced: DeliveryState | None = None
        self.first_transfer: Transfer | None = None
        self._has_gap = False
        #: What the newest try stored, of whatever delivery, and whether no try after it has.
        self._record: DeliveryState | None = None
        self._is_complete = False
        self._lost_draft: AlreadyDelivered | None = None
        #: The draft of an earlier try, as the service has shown it to this one.
        self._seen_draft = ""
        #: Of what the task is asked to deliver, in terms of the newest record.
        self._request_digest = ""

    def begin(self, transfer_id: str = "") -> None:
        """Load what the newest try stored, and store something for this one before anything else can fail.

        A record that is missing stays missing until the service is asked: of this try, nothing is stored then.

        :param transfer_id: the draft that another task made.
        :raises StateLost: the state store does not keep what it is given, or a later try has begun.
        """
        session, run = self._session, self._session.run
        newest, at, self._record = states.begin_attempt(session.store, run.try_number)
        self.latest = self._record  # an error from now on names what it may have sent
        self._is_complete = self._record is not None and run.is_newest_record(at, newest)
        self._has_gap = (run.expects_record or newest > 0) and not self._is_complete
        if not self._has_gap:
            # Without the id if the first try in a cleared run has to ask: so must those that follow it.
            new_record = session.empty_state(
                "" if run.clear_counters[1] else transfer_id, created_nothing=not transfer_id
            )
            states.save_verified(session.store, self._record or new_record, run.try_number)

    def find_previous_attempt(self, new: NewTransfer, files: Any = None, *, resend: bool = False) -> DraftState | None:
        """Find the draft or the sent transfer that an earlier try of this delivery made.

        A draft that was made from other input is discarded.

        :param files: the operator's argument, normalized.
        :param resend: send again if the task was cleared after the send.
        :return: None if there is neither.
        :raises AlreadyDelivered: something else was sent in this run, or the draft's fate cannot be determined.
        """
        session, state = self._session, self._load(new, files, resend=resend)
        if state is not None and state.replaced and not resend:
            state = self._give_up_resend(state, state.replaced)
        if state is None or not state.transfer_id:
            return None
        session.observer.set_current(state.transfer_id)
        transfer, why_not = self._find_transfer(state)
        if transfer is not None and transfer.is_draft:
            return self._resume_or_discard(state, transfer, new)
        may_be_sent = transfer is not None or state.send_started
        if may_be_sent and self._may_resend(state, resend=resend):
            session.log.warning("Resending (resend=True): this run has delivered transfer '%s'", state.transfer_id)
            self.replaced, self.latest = state, None
            return None
        if transfer is None:
            self._fail_if_send_in_doubt(state, why_not)
            return None
        if session.match(state, new) is Match.OTHER:
            raise session.already_delivered(transfer.id, "with other input than the task has now")
        check_sent(state, transfer)
        session.log.info("Resuming transfer %s (%s) of an earlier try", transfer.id, transfer.status)
        return DraftState(state, transfer, by_name(transfer.files))

    def _load(self, new: NewTransfer, files: Any, *, resend: bool) -> DeliveryState | None:
        """Return the state of the newest try, and note why a send is possible."""
        session, run, state = self._session, self._session.run, self._record
        is_same_request = state is not None and self._matches_request(state, new, files)
        self._request_digest = state.digest_request(new, files) if state else ""
        self.possible_send = self._possible_send(is_same_request=is_same_request, resend=resend)
        if state is None and self.possible_send is None:
            states.save(session.store, session.state_from_inputs(new, files, created_nothing=True))
        # A create that an earlier try started may have left a draft whose id is unknown.
        if state.is_creating if state else run.try_number > 1:
            self.max_drafts = 1
        self.latest = state
        if state:
            self.replaced, self.overruled = state.replaced, state.overruled
        if resend and self.possible_send and not self._is_first_after_clear:
            self.overruled = None  # the task has other input since
        return state

    def _possible_send(self, *, is_same_request: bool, resend: bool) -> PossibleSend | None:
        record = self._record if self._is_complete else None
        run = self._session.run
        possible = run.possible_send(record, is_same_request=is_same_request, has_gap=self._has_gap)
        if record is not None and record.possible_send and is_same_request and record.try_number == run.try_number:
            possible = record.possible_send  # what this very try asked before it was deferred
        if record is not None and record.found and is_same_request and (possible is None or possible.exactly):
            # Whatever has become of its files since, and wherever the connection leads now.
            reason = f"an earlier attempt found that transfer {record.found} is this delivery"
            possible = PossibleSend(reason, exactly=True, found=record.found)
        if not resend:
            return possible or (self._record.overruled if self._record else None)
        return None if self._is_overruled(is_same_request=is_same_request) else possible

    @property
    def _is_first_after_clear(self) -> bool:
        """Whether this is the first try after a clear: none since has left a record, whatever the retries say."""
        run, record = self._session.run, self._record
        seen = (record.clear_counters, record.overruled_in) if record and self._is_complete else ()
        return run.is_first_after_clear() and run.clear_counters not in seen

    def _is_overruled(self, *, is_same_request: bool) -> bool:
        """Return whether a try since the last clear was to send this again: those that follow it do not ask either."""
        run, record = self._session.run, self._record
        if record is None or not (self._is_complete and record.overruled):
            return False
        if record.overruled_for:
            return record.overruled_in == run.clear_counters and record.overruled_for == self._request_digest
        return is_same_request and self._session.was_cleared(record) is False

    def _give_up_resend(self, state: DeliveryState, sent: DeliveryState) -> DeliveryState:
        """Return the state of what the task delivers, now that it is no longer asked to send once more.

        :param state: of the draft that was made to do so.
        :param sent: of what had been sent before.
        :raises AlreadyDelivered: it is not known whether the draft was sent.
        """
        if state.transfer_id:
            transfer, why_not = self._find_transfer(state)
            if transfer is None:
                self._fail_if_send_in_doubt(state, why_not)
            elif not transfer.is_draft:
                return state
            else:
                self.discard(transfer.id, "resend is no longer set")
        states.save(self._session.store, sent, self._session.run.try_number)
        self.latest, self.replaced = sent, None
        return sent

    def _matches_request(self, state: DeliveryState, new: NewTransfer, files: Any) -> bool:
        is_same = self._session.match(state, new) is Match.SAME
        return is_same and state.files_digest == states.digest(files, state.salt)

    def _find_transfer(self, state: DeliveryState) -> tuple[Transfer | None, str]:
        """Return the transfer of an earlier try, or None and why it cannot be reached."""
        session = self._session
        if state.account != session.account:
            return None, f"the connection leads to {session.account} now, and led to {state.account} then"
        transfer = session.client.run(flows.find_transfer(state.transfer_id))
        if transfer is None:
            return None, "the connection's key does not see it any more"
        if not state.matches_identity(identity_of(transfer)):
            return None, "under its id is another transfer now, to other recipients or with another subject"
        require_file_list(transfer)
        session.observer.record_transfer(transfer)
        self._seen_draft = transfer.id if transfer.is_draft else ""
        return transfer, ""

    def _resume_or_discard(self, state: DeliveryState, transfer: Transfer, new: NewTransfer) -> DraftState | None:
        if self._session.match(state, new) is Match.SAME:
            self._session.log.info("Resuming draft %s of an earlier try", transfer.id)
            state.possible_send = self.possible_send
            return DraftState(state, transfer, by_name(transfer.files))
        self.discard(transfer.id, "it was made from other input")
        return None

    def discard(self, transfer_id: str, why: str) -> None:
        """Remove a draft of an earlier try.

        :raises AlreadyDelivered: it was sent.
        """
        session = self._session
        outcome = session.client.run(flows.discard_draft(transfer_id))
        if outcome is DiscardOutcome.SENT:
            raise session.already_delivered(transfer_id, why)
        session.observer.record_draft_removed(transfer_id)
        session.log.info("Discarded draft %s: %s", transfer_id, why)
        was_draft = outcome is DiscardOutcome.REMOVED or transfer_id == self._seen_draft
        for state in (self._record, self.latest):
            if was_draft and state and state.transfer_id == transfer_id and state.send_started:
                state.send_started = False  # it was a draft until the service removed it, so it was not sent
                if not self._has_gap:
                    states.save(session.store, state, session.run.try_number)

    def _may_resend(self, state: DeliveryState, *, resend: bool) -> bool:
        """Return whether the task was cleared in order to send again.

        :raises AlreadyDelivered: something in the run was cleared, and it is unknown whether this task was.
        """
        if not resend:
            return False
        is_cleared = self._session.was_cleared(state)
        if is_cleared is None:
            raise AlreadyDelivered(
                f"Transfer {state.transfer_id} was sent, and it is unknown whether this task or another of its run "
                "was cleared since. Nothing is sent again; to do so, clear this task once more."
            )
        return is_cleared

    def _fail_if_send_in_doubt(self, state: DeliveryState, why: str) -> None:
        if state.send_started:
            raise self._in_doubt(state.transfer_id, why)
        if self._has_gap:  # a later try may have sent it; the listing is asked first, which can say more
            self._lost_draft = self._in_doubt(state.transfer_id, why)
        self._session.observer.record_draft_removed(state.transfer_id)
        self._session.log.warning(
            "Left draft %s of an earlier try alone, as %s; creating a new one", state.transfer_id, why
        )

    def _in_doubt(self, transfer_id: str, why: str) -> AlreadyDelivered:
        return AlreadyDelivered(
            f"Transfer {transfer_id} was sent by an earlier try, or may have been, and {why}. Check the service's web "
            f"application. To send again, {self._session.run.how_to_resend}."
        )

    def load(self) -> None:
        """Load the record of a delivery key whose transfer was sent. Nothing is stored.

        :raises StateLost: there is none.
        """
        session = self._session
        self._record = self.latest = states.load(session.store, session.run.try_number)
        if self._record is None:
            raise states.StateLost(f"The record of delivery key {session.run.delivery_key!r} is missing")

    def find_sent(self, new: NewTransfer) -> DraftState:
        """Read a transfer that is known to be sent, as :meth:`load` has found.

        :raises AlreadyDelivered: it was sent with other input, or the connection does not lead to it.
        :raises WrongTransfer: the service does not say that it was sent.
        """
        session, state = self._session, self._record
        assert state is not None
        session.observer.set_current(state.transfer_id)
        transfer, why_not = self._find_transfer(state)
        if transfer is None:
            raise self._in_doubt(state.transfer_id, why_not)
        if transfer.is_draft:
            raise WrongTransfer(f"Transfer {transfer.id} was sent, and the service says that it is a draft.")
        if session.match(state, new) is Match.OTHER:
            raise session.already_delivered(transfer.id, "with other input than the task has now")
        check_sent(state, transfer)
        session.log.info("Transfer %s (%s) was sent under this delivery key", transfer.id, transfer.status)
        return DraftState(state, transfer, by_name(transfer.files))

    def resume_deferred(self, new: NewTransfer) -> DraftState | None:
        """Return the draft that this very try was working on when it deferred, without a call to the service."""
        session, run = self._session, self._session.run
        state = states.load(session.store, run.try_number)
        is_ours = state and state.try_number == run.try_number and state.account == session.account
        if state is None or not is_ours or not state.transfer_id or session.match(state, new) is not Match.SAME:
            return None
        # Should the draft have to be replaced.
        self.possible_send, self.overruled, self.replaced = state.possible_send, state.overruled, state.replaced
        attached = {name: File(file.file_id, name, file.size) for name, file in state.files.items() if file.file_id}
        transfer = Transfer(state.transfer_id, DRAFT, new.subject)
        session.observer.record_transfer(transfer, recipients=len(new.recipients))
        return DraftState(state, transfer, attached)

    def needs_same_input(self, *, resend: bool) -> bool:
        """Return whether an earlier try may have sent something, so that this one must ask for the very same.

        :param resend: send again if the task was cleared after the send.
        """
        record = self._record
        was_cleared = record is not None and self._session.was_cleared(record) is not False
        if resend and (was_cleared or self._is_first_after_clear):
            return False
        return self._has_gap or (record is not None and record.send_started)

    @property
    def unsent_draft(self) -> DeliveryState | None:
        """The state of a draft that earlier tries left, and of which certainly no send has begun."""
        record = self._record
        if record is None or self._has_gap or not record.transfer_id or record.send_started:
            return None
        return record

    def made_before(self) -> list[dict[str, str]]:
        """Return what earlier tries of the task made in this run: the transfers and their accounts."""
        key = self._session.run.delivery_key
        return [made_transfer(one.transfer_id, one.account, key) for one in _chain(self._record)]

    # Where the store does not rule a send out, the service is asked.

    @property
    def has_moved(self) -> bool:
        """Whether the connection led to another account, or had another key, when an earlier try ran.

        Not if this task created nothing then, as with a wrong key, nor can another index or an old name of it have.
        """
        record, session = self._record, self._session
        if record is None or not (record.has_moved or not session.is_same_user(record)):
            return False
        return bool(record.found) or not self.created_nothing or session.run.has_other_instances()

    @property
    def created_nothing(self) -> bool:
        """Whether certainly no earlier try of this task has created a draft."""
        return not self._has_gap and (self._record is None or self._record.created_nothing)

    def fail_if_sent(self, new: NewTransfer, sources: Sequence[Source] | None, *, resend: bool) -> None:
        """Check with the service that this very delivery was not sent, if the stored state does not rule it out.

        :param sources: the files; None if they cannot be found, so that a transfer with any files counts.
        :raises AlreadyDelivered: the service has sent what may be this very delivery.
        """
        if resend and self._is_first_after_clear:
            self.overruled, self.possible_send = self.overruled or self.possible_send, None
            if self.latest:  # a draft that is resumed carries the question to the send
                self.latest.possible_send = None
            if self._record and self._is_complete:  # for a retry, should the create not be reached
                self._record.overruled, self._record.overruled_in = self.overruled, self._session.run.clear_counters
                self._record.overruled_for = self._request_digest
                self._record.possible_send = None
                states.save(self._session.store, self._record, self._session.run.try_number)
        if self.possible_send:
            sizes = None if sources is None else {source.name: source.size for source in sources}
            self._fail_if_sent(new, sizes, self.possible_send, self.replaced)
            if self._lost_draft:
                raise self._lost_draft

    def fail_if_sent_meanwhile(self, state: DeliveryState, meant: NewTransfer | Transfer | None) -> None:
        """Ask the service once more before the send: attaching takes time, in which another task may send the same.

        :raises AlreadyDelivered: one has.
        """
        if state.possible_send and meant is not None:
            files = meant.files or () if isinstance(meant, Transfer) else ()
            sizes = {file.name: file.size for file in files} or {name: file.size for name, file in state.files.items()}
            self._fail_if_sent(meant, sizes, state.possible_send, state.replaced, state)

    def _fail_if_sent(
        self,
        wanted: NewTransfer | Transfer,
        files: Mapping[str, int] | None,
        possible: PossibleSend,
        replaced: DeliveryState | None,
        state: DeliveryState | None = None,
    ) -> None:
        """:param state: of this very delivery, to remember what is found, wherever the connection leads later."""
        session, record = self._session, self._record
        if self.has_moved and (possible.found or not possible.exactly):
            raise AlreadyDelivered(
                f"The connection led to another account or user before ({record.account if record else ''}), which "
                f"cannot be asked what was sent there, and {possible.reason}. If nothing was, "
                f"{session.run.how_to_resend}."
            )
        session.log.info("Checking with the service whether this was sent before: %s", possible.reason)
        sizes = files if possible.exactly else None
        known = {state.transfer_id for state in _chain(replaced)}
        if self.first_transfer:
            known.add(self.first_transfer.id)
        is_like = self._likeness(identity_of(wanted))
        since = session.run.started_at(possible)

        is_of_another_run = session.run.lookup_in_other_runs(session.account)
        made_by_other_tasks = cache(partial(session.run.made_by_other_tasks, session.account))

        def is_other(row: Transfer | UnreadableRow) -> bool:
            if row.id in known or is_of_another_run(row.id, to_epoch(row.sent_at)):
                return True
            is_equal = may_be_equal(known_identity_of(row), identity_of(wanted))
            return not is_equal and row.id in made_by_other_tasks()

        find = flows.find_sent(
            identity_of(wanted),
            files,
            since,
            sizes=sizes,
            found_before=possible.found,
            is_like=is_like,
            is_other=is_other,
        )
        sent = session.client.run(find)
        if sent is not None:
            state = state or (record if possible.exactly else None)
            if state is not None:
                state.found = sent.id
                states.save(session.store, state, session.run.try_number)
            raise AlreadyDelivered(
                f"Transfer {sent.id}, sent at {sent.sent_at}, has this delivery's {_common_parts(wanted, sent)}, and "
                f"files of it, and {possible.reason}. It may be this very delivery, so nothing is sent. If it is "
                f"another one, {session.run.how_to_resend}."
            )

    def _likeness(self, wanted: Identity) -> Callable[[KnownIdentity], bool]:
        """Return what tells whether a transfer is this delivery to others, which an earlier try may have had."""
        run = self._session.run
        if self.first_transfer:
            return partial(may_have_had, wanted=wanted, possible=frozenset(identity_of(self.first_transfer)[1]))
        # The items of a mapped task, and the deliveries of keys, may have files and recipients in common on purpose.
        if self._has_gap and not run.is_mapped and not run.delivery_key:
            return partial(may_have_had, wanted=wanted, possible=None)
        return lambda known: False  # noqa: ARG005

    # A draft that another task made.

    def load_for_send(self, transfer_id: str, *, resend: bool) -> tuple[DeliveryState, Transfer | None]:
        """Load the state of a draft that another task made and this one sends.

        :return: the state, and the transfer if it turns out that it was sent before.
        :raises AlreadyDelivered: this task has sent another transfer in this run, or the service has sent its like.
        """
        self.begin(transfer_id)
        self.latest = state = self._record
        is_same = state is not None and state.transfer_id == transfer_id
        self._reject_other_transfer(state, transfer_id, resend=resend)
        possible_send = self._possible_send(is_same_request=is_same, resend=resend)
        if state is None or not is_same:
            sent = None if state is None else state if state.send_started else state.replaced
            state = self._session.empty_state(transfer_id, replaced=sent, has_moved=self.has_moved)
            self.latest = None
        if resend and self._is_first_after_clear:
            state.overruled = state.overruled or possible_send
            return state, None
        if possible_send is None or (state.send_started and self._is_complete):
            return state, None
        state.possible_send = possible_send
        return state, self._find_previous_send(state, possible_send)

    def reject_unwanted_resend(self, state: DeliveryState, *, resend: bool) -> None:
        """:raises AlreadyDelivered: the draft was made to send once more, and that is no longer asked for."""
        if state.replaced and not resend:
            raise self._session.already_delivered(
                state.replaced.transfer_id, f"and is asked to send {state.transfer_id} too"
            )

    def _reject_other_transfer(self, state: DeliveryState | None, transfer_id: str, *, resend: bool) -> None:
        is_other = state is not None and state.transfer_id != transfer_id
        if state and is_other and state.send_started and not self._may_resend(state, resend=resend):
            raise AlreadyDelivered(
                f"This task has sent transfer {state.transfer_id} in this run, or may have, and is asked to send "
                f"{transfer_id} now. Nothing is sent. To send this one too, set resend=True and clear the task."
            )

    def _find_previous_send(self, state: DeliveryState, possible: PossibleSend) -> Transfer | None:
        """Return the transfer if it was sent already; None if neither it nor its like was sent in this run."""
        session = self._session
        transfer = session.client.perform(endpoints.get_transfer(state.transfer_id))
        if not transfer.is_draft:
            session.log.info("Transfer %s was sent before", transfer.id)
            session.observer.record_transfer(transfer)
            return transfer
        require_file_list(transfer)
        files = {file.name: file.size for file in transfer.files or ()}
        self._fail_if_sent(transfer, files, possible, state.replaced)
        return None


def _common_parts(wanted: NewTransfer | Transfer, sent: Transfer) -> str:
    is_equal = may_be_equal(known_identity_of(sent), identity_of(wanted))
    return "subject and recipients" if is_equal else "subject, some of its recipients"


def _chain(state: DeliveryState | None) -> Iterator[DeliveryState]:
    """Yield what a task has sent, the last first."""
    while state is not None:
        yield state
        state = state.replaced
