"""A delivery in a task: a draft that is created once, filled with exactly the right files, and sent once.

A crash at any point is safe because of the order of the steps. Each line is stored before the next one starts:

1. This try has started, read back to prove that the store keeps it: :meth:`.DeliveryHistory.begin`.
2. A draft is about to be created, read back too; then the create; then the draft's id: :meth:`Delivery.create`.
3. The plan of all files; then their bytes: :meth:`Delivery.attach`.
4. The send is about to start; Airflow confirms that this try still runs; then the send: :meth:`Delivery.send`.

The service's response under a stored id is compared with the stored intention (:mod:`.comparison`). If the store has
gaps, the service is asked what it sent (:mod:`.history`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import AirflowTaskTimeout
from outbound_transfer.client.deferral import DeferRequested
from outbound_transfer.client.settings import InvalidSettings
from outbound_transfer.delivery import state as states
from outbound_transfer.delivery.attachments import by_name, describe_differences
from outbound_transfer.delivery.comparison import (
    DraftOutdated,
    DraftState,
    check_attached,
    check_identity,
    check_sent,
    require_file_list,
)
from outbound_transfer.delivery.file_attacher import FileAttacher, reason_to_replace
from outbound_transfer.delivery.history import DeliveryHistory
from outbound_transfer.delivery.session import DeliverySession
from outbound_transfer.delivery.state import DeliveryState, StateStore
from outbound_transfer.protocol import endpoints, flows
from outbound_transfer.protocol.errors import CallError, OutboundTransferError
from outbound_transfer.protocol.identity import identity_of
from outbound_transfer.protocol.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client import Client
    from outbound_transfer.delivery.observer import DeliveryObserver
    from outbound_transfer.delivery.sources import Source
    from outbound_transfer.delivery.task_run import TaskRun
    from outbound_transfer.protocol.messages import Precondition
    from outbound_transfer.protocol.models import File, NewTransfer, Transfer


class Delivery:
    """The steps of one delivery, each of which resumes where an earlier try of the task stopped.

    :param run: the try of the task that takes them.
    :param observer: is notified of every step.
    :param on_sent: called when this try has sent its transfer.
    :ivar history: what earlier tries did.
    :ivar draft: the draft that the task has made and works on, in this try; None if there is none yet.
    """

    def __init__(
        self,
        client: Client,
        store: StateStore,
        log: Logger,
        *,
        run: TaskRun,
        observer: DeliveryObserver | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_sent = on_sent
        self._session = DeliverySession(client, store, log, run=run, observer=observer)
        self.client, self.store, self.log, self.run = client, store, log, run
        self.observer = self._session.observer
        self.history = DeliveryHistory(self._session)
        self.draft: DraftState | None = None
        #: Whether this very try has created the draft, so that no other knows it.
        self._is_created = False

    @contextmanager
    def annotate_in_doubt_errors(self) -> Iterator[None]:
        """Let each error that ends the block say so if an earlier try may have sent a transfer."""
        try:
            yield
        except OutboundTransferError as error:
            state = self.history.latest
            if (
                state is not None
                and state.send_started
                and not error.in_doubt_warning
                and state.transfer_id not in str(error)
            ):
                error.in_doubt_warning = endpoints.send_in_doubt_warning(state.transfer_id)
            raise

    def create(self, new: NewTransfer, files: Any = None) -> DraftState:
        """Create a draft, and store its id before anything else is done with it.

        :param files: the operator's argument, normalized.
        :raises StateLost: the state store does not keep what it is given; nothing was created.
        """
        state = self._session.state_from_inputs(new, files)
        state.is_creating, state.has_moved = True, self.history.has_moved
        state.possible_send, state.overruled = self.history.possible_send, self.history.overruled
        state.replaced = self.history.replaced
        states.save_verified(self.store, state)
        try:
            transfer = self.client.run(flows.create_draft(new, self.history.max_drafts))
        except (CallError, DeferRequested) as refusal:
            if not refusal.was_in_doubt:
                self._undo_create_started(state)
            raise
        except InvalidSettings:  # before the request
            self._undo_create_started(state)
            raise
        state.transfer_id, state.is_creating = transfer.id, False
        state.identity = states.digest(identity_of(transfer), state.salt)
        states.save(self.store, state)
        self.observer.record_transfer(transfer)
        self.log.info("Created draft %s for %s", transfer.id, pluralize(len(new.recipients), "recipient"))
        self.draft, self._is_created = DraftState(state, transfer, {}), True
        return self.draft

    def _undo_create_started(self, state: DeliveryState) -> None:
        # It has left no draft, unless an earlier try did.
        state.is_creating, state.created_nothing = self.history.max_drafts == 1, self.history.created_nothing
        with suppress(Exception):  # if it stays stored, one draft fewer may be left
            states.save(self.store, state)

    def load_draft(self, transfer_id: str) -> DraftState:
        """Read a draft that another task made, with what this task has attached to it so far.

        Stores something for this try, unless the record of the try before is missing: that stays visible until the
        draft's files are checked.

        :raises StateLost: the state store does not keep what it is given; nothing was attached.
        :raises WrongTransfer: the connection leads to another account than before, or the id to another transfer.
        """
        self.observer.set_current(transfer_id)
        newest, at, state = states.begin_attempt(self.store, self.run.try_number)
        is_record_missing = not self.run.is_newest_record(at, newest)
        is_same = state is not None and state.transfer_id == transfer_id
        state = state if state is not None and is_same else self._session.empty_state(transfer_id)
        self.check_account(transfer_id, state.account, is_sending=state.send_started)
        if not is_record_missing:
            states.save_verified(self.store, state, self.run.try_number)
        transfer = self.client.perform(endpoints.get_transfer(transfer_id))
        check_identity(state, transfer)
        require_file_list(transfer)
        self.observer.record_transfer(transfer)
        return DraftState(state, transfer, by_name(transfer.files), is_record_missing)

    def attach(
        self,
        draft: DraftState,
        sources: Sequence[Source],
        *,
        files: Any = None,
        exclusive: bool,
        max_parallel_uploads: int,
    ) -> list[File]:
        """Make the draft hold exactly ``sources``; see :meth:`.FileAttacher.attach`.

        :param max_parallel_uploads: how many files to upload at once, after the largest.
        """
        attacher = FileAttacher(self._session, max_parallel_uploads)
        return attacher.attach(draft, sources, files=files, exclusive=exclusive)

    reason_to_replace = staticmethod(reason_to_replace)

    def send(
        self,
        state: DeliveryState,
        meant: NewTransfer | Transfer | None,
        precondition: Precondition | None = None,
    ) -> Transfer:
        """Send the draft, or find that it was sent.

        :param meant: the transfer that the draft is to become; None if there is no doubt whether it was sent.
        :param precondition: is checked right before each attempt; raises :class:`.DraftOutdated` if it does not hold.
        :raises AlreadyDelivered: the service has sent its like since it was asked first.
        :raises DraftOutdated: the precondition does not hold: the draft is removed, and was not sent.
        :raises DraftChanged: another try has changed the files of the draft; nothing is sent.
        :raises TaskNotRunning: Airflow has given this try up; nothing is sent.
        :raises WrongTransfer: the sent transfer is not the one that was meant.
        """
        send = replace(endpoints.send_transfer(state.transfer_id), precondition=precondition)
        self.history.fail_if_sent_meanwhile(state, meant)
        self.history.latest = state  # an error from now on names what it may have sent
        was_in_doubt, state.send_started = state.send_started, True
        try:
            # A try that Airflow has given up can no longer write its state, so it stops here and cannot send.
            self._session.save(state)
            self._session.check_still_current()
            if self.run.has_predecessor and not self._is_created:
                self._check_files(state)
        except (Exception, AirflowTaskTimeout):
            self._undo_send_started(state, was_in_doubt)
            raise
        try:
            transfer = self.client.perform(send)
        except CallError as error:
            if not error.in_doubt_warning:  # it had no effect: the draft may be discarded and created again
                self._undo_send_started(state, was_in_doubt)
            raise
        except DeferRequested as request:
            if not request.was_in_doubt:
                self._undo_send_started(state, was_in_doubt)
            raise
        except DraftOutdated as reason:
            # Its removal ends all doubt about a send that may still be under way.
            self.history.discard(state.transfer_id, str(reason))
            self._session.save(state)
            self.draft = None
            raise
        self._on_sent()
        self.observer.record_transfer(transfer)
        self.log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        check_sent(state, transfer)
        return transfer

    def _check_files(self, state: DeliveryState) -> None:
        """Check that a draft that another try may still work on holds exactly what this one has attached.

        :raises DraftChanged: it does not.
        """
        if not state.files:
            return  # another task attaches them
        transfer = self.client.perform(endpoints.get_transfer(state.transfer_id))
        require_file_list(transfer)
        if transfer.is_draft:  # otherwise the send finds it sent, and it is compared then
            check_attached(state, transfer)

    def _undo_send_started(self, state: DeliveryState, was_in_doubt: bool) -> None:
        state.send_started = was_in_doubt
        with suppress(Exception):  # if it stays stored, the next try asks the service
            self._session.save(state)

    def send_draft(
        self,
        transfer_id: str,
        *,
        resumed: bool,
        resend: bool = False,
        announce: Callable[[], None] = lambda: None,
    ) -> Transfer:
        """Send a draft that another task made.

        :param resumed: see :meth:`.OutboundTransferOperator.run_task`.
        :param resend: send another transfer than this task has sent in its run, if it was cleared.
        :param announce: called where this task sends the draft, or has sent it, before it does.
        :raises AlreadyDelivered: this task has sent another transfer in this run.
        """
        self.observer.set_current(transfer_id)
        state, sent = self.history.load_for_send(transfer_id, resend=resend)
        if state.send_started:
            announce()
        if sent:
            return sent
        self.check_account(transfer_id, state.account, is_sending=state.send_started)
        draft = None
        if state.possible_send if resumed else state.send_started:
            draft = self.client.perform(endpoints.get_transfer(transfer_id))
            check_identity(state, draft)
            if not draft.is_draft:
                self.log.info("Transfer %s was sent by an earlier try", draft.id)
                self.observer.record_transfer(draft)
                return draft
        self.history.reject_unwanted_resend(state, resend=resend)
        announce()
        return self.send(state, draft if resumed else None)

    def check_account(self, transfer_id: str, account: str, *, is_sending: bool = False) -> None:
        """Compare the account that a transfer was made in with the connection's.

        :raises WrongTransfer: they differ.
        """
        self._session.check_account(transfer_id, account, is_sending=is_sending)

    def check_files_unchanged(
        self, draft: DraftState, files: Any, find: Callable[[list[OutboundTransferError]], Sequence[Source]]
    ) -> None:
        """After a clear, check that the files are those that were sent; an automatic retry requests nothing new.

        :param files: the operator's argument, normalized.
        :param find: finds the files that are left, and adds the errors of those that are gone to a list.
        :raises AlreadyDelivered: they differ.
        """
        state = draft.state
        is_cleared = self._session.was_cleared(state)
        if is_cleared is False or (is_cleared is None and not self.run.is_first_after_clear()):
            return
        gone: list[OutboundTransferError] = []
        sources = find(gone)
        planned = state.files
        if gone:
            if states.digest(files, state.salt) != state.files_digest:
                raise self._session.already_delivered(
                    state.transfer_id, "with other paths or patterns in files"
                ) from gone[0]
            found = by_name(sources)
            planned = {name: file for name, file in planned.items() if name in found}
        if differences := describe_differences(planned, sources):
            what = "; ".join([*differences[:5], *map(str, gone[:5])])
            raise self._session.already_delivered(state.transfer_id, f"with other files: {what}")
        if gone:
            self.log.warning("Could not compare sent files with their sources, which are gone: %s", gone[0])
