"""A delivery in one try of a task: gather the evidence, decide, act. The only module with effects.

The order of the effects is what makes a crash at any point safe. Each line is stored before the next one starts:

1. This try has begun: :meth:`Delivery.begin`. From then on, no earlier try can store anything, so none begins a send.
2. The draft's id: :meth:`Delivery.prepare`. A draft whose id nobody has stored is never sent.
3. A send begins: :meth:`Delivery.send`. Before each attempt at it, everything that may have changed is asked again.

How the try ended is stored last (:meth:`Delivery.closing`): without that word of it, its draft is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from outbound_transfer.delivery.check import check_sent, describe_changes
from outbound_transfer.delivery.decision import (
    Action,
    ById,
    Check,
    Decision,
    Phase,
    Reason,
    Step,
    decide,
)
from outbound_transfer.delivery.draft_writer import DraftWriter
from outbound_transfer.delivery.evidence import EvidenceCollector
from outbound_transfer.delivery.memory import Likeness, Memory, Scope, may_be_cleared_since
from outbound_transfer.delivery.observer import DeliveryObserver
from outbound_transfer.delivery.refusal import refusal
from outbound_transfer.protocol.errors import AlreadyDelivered, DraftChanged, NotFound

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client import Client
    from outbound_transfer.delivery.memory_store import MemoryStore
    from outbound_transfer.delivery.order import Order
    from outbound_transfer.delivery.task_facts import TaskFacts
    from outbound_transfer.protocol.models import Transfer


class DraftOutdated(Exception):
    """Control flow, not an error: the draft was discarded, as what it was made from changed right before its send."""


class Delivery:
    """One try of a delivery.

    :param scope: where the connection leads.
    :param observer: is notified of every step.
    :param on_draft: called once the draft or the sent transfer that this try works on is known.
    :param on_sent: called when this try has sent its transfer.
    :param is_of_other_key: returns whether a transfer was delivered under another delivery key.
    """

    def __init__(
        self,
        client: Client,
        store: MemoryStore,
        log: Logger,
        *,
        facts: TaskFacts,
        scope: Scope,
        observer: DeliveryObserver | None = None,
        on_draft: Callable[[Delivery], object] = lambda delivery: None,  # noqa: ARG005
        on_sent: Callable[[], object] = lambda: None,
        is_of_other_key: Callable[[str], bool] = lambda transfer_id: False,  # noqa: ARG005
    ) -> None:
        observer = observer or DeliveryObserver()
        self.client, self.store, self.log, self.facts, self.scope = client, store, log, facts, scope
        self.evidence = EvidenceCollector(client, facts, scope, observer, is_of_other_key)
        self.draft = DraftWriter(client, store, log, Memory(facts.writer, scope), observer)
        self._on_draft, self._on_sent = on_draft, on_sent
        self._is_first_attempt = True
        #: Whether an attempt at the send was made before, after which the next one has waited.
        self._has_waited = facts.is_resumed

    @property
    def memory(self) -> Memory:
        """What is remembered, as this try knows it."""
        return self.draft.memory

    @property
    def transfer(self) -> Transfer | None:
        """The draft or the sent transfer, as the service showed it last; None before it is known."""
        return self.evidence.transfer

    # The beginning.

    def begin(self, question: Likeness | None = None) -> None:
        """Load what the newest try has stored, and store that this one has begun.

        :param question: a question that this task has left open under another delivery key.
        :raises StateLost: the store does not keep what it is given, or a later try has begun.
        """
        remembered, is_complete = self.store.begin()
        question = question if is_complete else self.facts.missing_memory.or_wider(question)
        before, writer = remembered or Memory(self.facts.writer, self.scope), self.facts.writer
        self.draft.memory = before.continued(writer, question, is_complete=is_complete)
        self.store.save_verified(self.memory)

    def keep(self, **known: Any) -> None:
        """Store what is known beside what is remembered."""
        self.draft.keep(replace(self.memory, **known))

    def may_have_sent(self) -> bool:
        """Return whether an earlier try may have sent something."""
        return self.memory.has_gap or self.memory.phase is Phase.SENDING

    @property
    def possibly_sent_id(self) -> str:
        """The id of what was sent, or may have been; "" if nothing was."""
        return self.memory.draft_id if self.memory.phase is Phase.SENDING else ""

    def withdraw(self) -> None:
        """Make sure that nothing can be sent any more of what is remembered: the task delivers something else now.

        :raises AlreadyDelivered: something was sent, or may have been.
        """
        while self.memory.phase is not Phase.EMPTY:
            decision = self._decide(Step.PREPARE, None)
            if decision.action is Action.REFUSE:
                raise self._refusal(Reason.OTHER_KEY, None)
            self._act(decision, None)

    # Before the send.

    def deliver(self, order: Order, max_parallel_uploads: int) -> Transfer:
        """Create, fill and send a draft, or find that it was sent."""
        transfer = self.prepare(order)
        if not transfer.is_draft:
            return transfer
        try:
            self.draft.fill(transfer, order.find(), max_parallel_uploads)
            return self._send(order)
        except (DraftChanged, NotFound):
            self.store.check_still_own()  # whoever has taken over has discarded the draft
            raise

    def prepare(self, order: Order, *, is_shared: bool = False) -> Transfer:
        """Return the draft to fill, or the transfer if it was sent.

        :param is_shared: other tasks fill and send the draft, so that it counts as one that may be sent.
        :raises AlreadyDelivered: what to deliver was sent, or may have been, and must not be sent again.
        """
        self.evidence.is_shared = is_shared
        self.draft.memory = self.evidence.with_question(self.memory, order)
        while True:
            decision = self._decide(Step.PREPARE, order)
            match decision.action:
                case Action.CREATE:
                    order.find()  # a missing file must leave no draft behind
                    phase = Phase.SENDING if is_shared else Phase.DRAFT
                    return self._work_on(self.draft.create(order.new, self.evidence.digests(order), phase))
                case Action.RESUME:
                    self.draft.resume()
                    return self._work_on(self.transfer)
                case Action.RETURN:
                    return self._return(order)
                case _:
                    self._act(decision, order)

    def _decide(self, step: Step, order: Order | None) -> Decision:
        return decide(step, self.evidence.gather(self.memory, order))

    def _act(self, decision: Decision, order: Order | None) -> None:
        """Take a step after which the table is read again."""
        match decision.action:
            case Action.RETRIEVE:
                self.evidence.retrieve(self.memory)
                if self.evidence.seen_of(self.memory).by_id is ById.SENT and self.memory.phase is not Phase.SENDING:
                    self.draft.keep(replace(self.memory, phase=Phase.SENDING))  # a late send of an earlier try
                    self.evidence.note(self.memory, by_id=ById.SENT)
            case Action.SEARCH:
                assert order is not None, "only what is to be delivered is searched for"
                self.log.info("Checking with the service whether this was sent before")
                self.evidence.search(self.memory, order)
                seen = self.evidence.seen_of(self.memory)
                if seen.found and self.memory.question is Likeness.EXACT:
                    # Another has sent its item, which may change before it is looked for again.
                    self.draft.memory = replace(self.memory, question=Likeness.SAME_PEOPLE)
                    self.evidence.note(self.memory, **seen._asdict())
            case Action.DISCARD:
                self._discard()
            case Action.FORGET:
                self.log.warning("Transfer %s of an earlier try: %s", self.memory.draft_id, decision.action.value)
                self.draft.remember(decision.action)
            case _:
                assert decision.reason is not None, decision
                raise self._refusal(decision.reason, order, self.evidence.seen_of(self.memory).found)

    def _work_on(self, transfer: Transfer | None) -> Transfer:
        assert transfer is not None, "it was looked at"
        self.evidence.transfer = transfer
        self._on_draft(self)
        return transfer

    def _discard(self) -> bool:
        return self.draft.discard(is_draft=self.evidence.seen_of(self.memory).by_id is ById.DRAFT)

    def _send(self, order: Order) -> Transfer:
        """Send the draft.

        :raises DraftOutdated: it was discarded instead.
        :raises AlreadyDelivered: its like was sent meanwhile.
        :raises DraftChanged: during a wait, somebody else has changed it.
        :raises TaskNotRunning, StateLost, StaleTry: another try decides now.
        :raises WrongTransfer: what was sent is not what was meant.
        """
        self._is_first_attempt = True
        transfer = self.draft.send(lambda: self._before_attempt(order))
        self._on_sent()
        self.evidence.transfer = transfer
        check_sent(self.memory, transfer)
        return transfer

    def _before_attempt(self, order: Order) -> None:
        """Ask again whatever may have changed since the last attempt, or since the draft was prepared."""
        self._note_wait()
        while True:
            decision = self._decide(Step.SEND, order)
            match decision.action:
                case Action.SEND:
                    return
                case Action.CHECK:
                    assert order.is_outdated is not None, "there is something to check"
                    self.evidence.note(self.memory, is_outdated=Check.YES if order.is_outdated() else Check.NO)
                case Action.CONFIRM:
                    self.facts.check_still_running()
                    self.store.check_still_own()
                    self.evidence.note(self.memory, is_wanted=Check.YES)
                case Action.DISCARD:
                    if not self._discard():
                        return  # an earlier attempt has sent it, as the next one finds out
                    raise DraftOutdated
                case Action.REFUSE:
                    found = self.evidence.seen_of(self.memory).found
                    if not self._discard():
                        return
                    assert decision.reason is not None, decision
                    raise self._refusal(decision.reason, order, found)
                case _:
                    self._act(decision, order)

    def _note_wait(self) -> None:
        """After a wait, nothing is known any more."""
        if self._has_waited and self.facts.is_mapped:  # the list may be in another order since, and its items cleared
            question = Likeness.EXACT.or_wider(self.memory.question)
            self.draft.memory = replace(self.memory, question=question)
        if not self._is_first_attempt:
            self.evidence.check_unchanged(self.memory)
        self._has_waited, self._is_first_attempt = True, False
        self.evidence.forget()

    def _return(self, order: Order) -> Transfer:
        """Return the transfer that was sent; after a clear, only if its files are still those that were sent."""
        transfer = self.transfer
        assert transfer is not None, "it was looked at"
        self._on_draft(self)
        check_sent(self.memory, transfer)
        is_asked_anew = may_be_cleared_since(self.memory, self.facts.writer) or self._has_other_files(order)
        if is_asked_anew and (changes := describe_changes(self.memory, order, self.log)):
            raise self._refusal(Reason.OTHER_INPUT, order, differences=changes)
        self.log.info("Transfer %s (%s) was sent by an earlier try", transfer.id, transfer.status)
        return transfer

    def _has_other_files(self, order: Order) -> bool:
        return self.memory.input is None or "files" in self.memory.input.differences(order.new, order.files)

    def _refusal(
        self, reason: Reason, order: Order | None, found: Transfer | None = None, differences: str = ""
    ) -> AlreadyDelivered:
        memory = self.memory
        if not differences and memory.input and order:
            differences = ", ".join(memory.input.differences(order.new, order.files)) or "phones or security_answer"
        found_id, key = found.id if found else "", self.facts.delivery_key
        return refusal(reason, memory.draft_id, found_id, differences, memory.scope, self.scope, key)

    @contextmanager
    def closing(self, is_final: Callable[[BaseException], bool], open_client: Callable[[], Client]) -> Iterator[None]:
        """Store how this try ended, if an error or a skip ends the block before the send.

        With no call in doubt, the next try may continue with the draft. If there is none, the draft is discarded.

        :param is_final: whether no later try continues, so that the draft is to be discarded.
        :param open_client: returns a client whose calls give up soon and do not defer.
        """
        try:
            yield
        except BaseException as error:
            try:
                self._close(open_client if is_final(error) else None)
            except Exception as failure:
                self.log.warning("Draft '%s' of this task stays at the service: %s", self.memory.draft_id, failure)
            raise

    def _close(self, open_client: Callable[[], Client] | None) -> None:
        phase = self.memory.phase
        if open_client and phase in (Phase.DRAFT, Phase.HANDED_ON):
            self.store.check_still_own()
            with open_client() as client:
                self.draft.client = self.evidence.client = client
                if self.transfer is None:
                    self.evidence.retrieve(self.memory)
                if self.transfer and self.transfer.is_draft:
                    self._discard()
        elif phase is Phase.DRAFT and self.draft.has_stopped:
            self.draft.remember(Action.RESUME, phase=Phase.HANDED_ON)
        elif phase is Phase.EMPTY:
            self.store.save(self.memory)
