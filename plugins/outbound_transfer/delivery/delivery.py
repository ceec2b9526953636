"""A delivery in one try of a task: gather the evidence, decide, act. The only module with effects.

The order of the effects is what makes a crash at any point safe. Each line is stored before the next one starts:

1. This try has begun: :meth:`Delivery.begin`. From then on, no earlier try can store anything, so none begins a send.
2. The draft's id: :meth:`Delivery.prepare`. A draft whose id nobody has stored is never sent.
3. A send begins: :meth:`Delivery.send`. Before each attempt at it, everything that may have changed is asked again.

How the try ended is stored last (:meth:`Delivery.closing`): without that word of it, its draft is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from outbound_transfer.client.deferral import DeferRequested
from outbound_transfer.delivery.check import check_sent, describe_differences, holds_only, require_file_list
from outbound_transfer.delivery.decision import (
    Action,
    ById,
    Check,
    Decision,
    Evidence,
    Input,
    Intent,
    Phase,
    Reason,
    Search,
    Step,
    decide,
)
from outbound_transfer.delivery.memory import (
    AttachedFile,
    InputDigests,
    Likeness,
    Memory,
    Scope,
    arguments_of,
    digest,
    intent_of,
    licence_of,
    matches,
    was_cleared_since,
)
from outbound_transfer.delivery.observer import DeliveryObserver
from outbound_transfer.delivery.search import SearchTarget, find_like
from outbound_transfer.files.uploads import FinishedUpload, attach_sources
from outbound_transfer.protocol import endpoints, flows
from outbound_transfer.protocol.errors import AlreadyDelivered, NotFound, OutboundTransferError
from outbound_transfer.protocol.flows import DiscardOutcome, SafeCall
from outbound_transfer.protocol.identity import identity_of
from outbound_transfer.protocol.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client import Client
    from outbound_transfer.delivery.memory_store import MemoryStore
    from outbound_transfer.delivery.task_facts import TaskFacts
    from outbound_transfer.files.sources import Source
    from outbound_transfer.protocol.models import NewTransfer, Transfer


class DraftOutdated(Exception):
    """Control flow, not an error: the draft was discarded, as what it was made from changed right before its send."""


@dataclass
class Order:
    """What a task is asked to deliver.

    :ivar files: the operator's argument, normalized.
    :ivar find_sources: finds the files; takes a list for the errors of those that are gone if they are only compared
        with what was sent. None if another task attaches them.
    :ivar resend: send again what may be sent already, if the task was cleared since.
    :ivar is_outdated: checked right before each attempt at the send; None if nothing can change.
    :ivar first: the transfer that this delivers again; None if it is not a second delivery.
    """

    new: NewTransfer
    files: Any = None
    find_sources: Callable[..., Sequence[Source]] | None = None
    resend: bool = False
    is_outdated: Callable[[], bool] | None = None
    first: Transfer | None = None

    _found: Sequence[Source] | None = None

    def find(self) -> Sequence[Source]:
        """Return the files, which are found once."""
        if self._found is None:
            self._found = self.find_sources() if self.find_sources else ()
        return self._found


class _Seen(NamedTuple):
    """What this try has seen since its last action."""

    by_id: ById = ById.NOT_RETRIEVED
    search: Search = Search.NOT_SEARCHED
    found: Transfer | None = None
    is_outdated: Check = Check.OPEN
    is_wanted: Check = Check.OPEN


class Delivery:
    """One try of a delivery.

    :param scope: where the connection leads.
    :param observer: is notified of every step.
    :param on_draft: called once the draft or the sent transfer that this try works on is known.
    :param on_sent: called when this try has sent its transfer.
    :param is_of_other_key: returns whether a transfer was delivered under another delivery key.
    :ivar memory: what is remembered, as this try knows it.
    :ivar transfer: the draft or the sent transfer, as the service showed it last; None before it is known.
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
        self.client, self.store, self.log, self.facts, self.scope = client, store, log, facts, scope
        self.observer = observer or DeliveryObserver()
        self.memory = Memory(facts.writer, scope)
        self.transfer: Transfer | None = None
        self._on_draft, self._on_sent, self._is_of_other_key = on_draft, on_sent, is_of_other_key
        self._seen, self._is_complete = _Seen(), True
        self._is_shared = self._is_elsewhere = self._may_resend = False
        #: Whether an attempt at the send was made before, after which the next one has waited.
        self._has_waited = facts.is_resumed
        #: Whether this try works on the draft, and whether a call that changes it may still be under way.
        self._is_writer = self._may_be_in_flight = False

    # The beginning.

    def begin(self, question: Likeness | None = None) -> None:
        """Load what the newest try has stored, and store that this one has begun.

        :param question: a question that this task has left open under another delivery key.
        :raises StateLost: the store does not keep what it is given, or a later try has begun.
        """
        remembered, self._is_complete = self.store.begin()
        question = question if self._is_complete else self.facts.missing_memory.or_wider(question)
        before, writer = remembered or Memory(self.facts.writer, self.scope), self.facts.writer
        self.memory = before.continued(writer, question, is_complete=self._is_complete)
        self.store.save_verified(self.memory)

    def inherit(self, question: Likeness) -> Delivery:
        """Take over a question that this task has left open under a delivery key."""
        self.memory = msgspec.structs.replace(self.memory, question=question.or_wider(self.memory.question))
        self.store.save(self.memory)
        return self

    def point_to(self, scope: Scope) -> None:
        """Remember that the task works elsewhere from now on: its own memory is about nothing that can be sent."""
        self.memory = Memory(self.facts.writer, scope, question=self.memory.question)
        self.store.save(self.memory)

    def load(self) -> None:
        """Load what was delivered under a key; nothing is stored, as it was sent and never changes again."""
        self.memory = self.store.read() or self.memory

    def may_be_sent(self, *, resend: bool) -> bool:
        """Return whether an earlier try may have sent something, so that this one must be asked for the very same.

        :param resend: send again if the task was cleared since.
        """
        if self._intent({}, resend=resend) is Intent.RESEND:
            return False
        return not self._is_complete or self.memory.phase in (Phase.SENDING, Phase.SUSPECTED)

    @property
    def possibly_sent_id(self) -> str:
        """The id of what was sent, or may have been; "" if nothing was."""
        return self.memory.draft_id if self.memory.phase is Phase.SENDING else ""

    def withdraw(self, *, resend: bool) -> None:
        """Make sure that nothing can be sent any more of what is remembered: the task delivers something else now.

        :param resend: deliver it even if something was sent, if the task was cleared since.
        :raises AlreadyDelivered: something was sent, or may have been.
        """
        self._may_resend = resend
        while self.memory.phase is not Phase.EMPTY:
            self._act(decide(Step.PREPARE, self._gather(None)), None)

    # Before the send.

    def deliver(self, order: Order, max_parallel_uploads: int) -> Transfer:
        """Create, fill and send a draft, or find that it was sent."""
        transfer = self.prepare(order)
        if not transfer.is_draft:
            return transfer
        try:
            self._fill(order.find(), max_parallel_uploads)
            return self._send(order)
        except NotFound:
            self.store.check_still_own()  # whoever has taken over has discarded the draft
            raise

    def prepare(self, order: Order, *, is_shared: bool = False) -> Transfer:
        """Return the draft to fill, or the transfer if it was sent.

        :param is_shared: other tasks fill and send the draft, so that it counts as one that may be sent.
        :raises AlreadyDelivered: what to deliver was sent, or may have been, and must not be sent again.
        """
        self._is_shared = is_shared
        self._note_question(order)
        while True:
            decision = decide(Step.PREPARE, self._gather(order))
            match decision.action:
                case Action.CREATE:
                    return self._create(order)
                case Action.RESUME:
                    assert self.transfer is not None, "it was looked at"
                    self._remember(Action.RESUME, scope=self.scope)
                    self._is_writer = True
                    self.log.info("Resuming draft %s of an earlier try", self.memory.draft_id)
                    self._on_draft(self)
                    return self.transfer
                case Action.RETURN:
                    return self._return(order)
                case _:
                    self._act(decision, order)

    def _note_question(self, order: Order) -> None:
        memory = self.memory
        is_own = memory.input is not None and not memory.input.differences(order.new, order.files)
        self._is_elsewhere = memory.question is not None or self.facts.has_other_indexes()
        if question := self.facts.find_question(memory, is_own=is_own):
            self._is_elsewhere |= is_own or memory.input is None
            memory = msgspec.structs.replace(memory, question=question.or_wider(memory.question))
        if memory.input is None:  # so that a later try knows it, should this one not come to the draft
            memory = msgspec.structs.replace(memory, input=self._digests(order))
        self.memory = memory

    def _gather(self, order: Order | None) -> Evidence:
        memory, seen = self.memory, self._seen
        arguments, resend = (arguments_of(order.new, order.files), order.resend) if order else ({}, self._may_resend)
        return Evidence(
            memory.phase,
            self._compare(order),
            self._intent(arguments, resend=resend),
            seen.by_id,
            # What other tasks fill is searched for by the one that sends it, as only then its files are known.
            memory.question is not None and (not self._is_shared or self._cannot_be_searched),
            seen.search,
            bool(memory.superseded),
            seen.is_outdated if order and order.is_outdated else Check.NO,
            seen.is_wanted,
        )

    def _compare(self, order: Order | None) -> Input:
        memory = self.memory
        if order is None:
            return Input.OTHER
        if memory.input is None:
            return Input.SAME
        is_same_key = memory.scope.key_check == self.scope.key_check
        compared = memory.input.compare(order.new, self.client.settings.transfer_api_key, is_same_key=is_same_key)
        files = self.transfer.files if self.transfer and self._seen.by_id is ById.DRAFT else None
        if compared is Input.SAME and memory.phase is Phase.HANDED_ON and files:
            return Input.SAME if holds_only(files, memory.files, order.find()) else Input.OTHER
        return compared

    def _intent(self, arguments: Any, *, resend: bool) -> Intent:
        is_first_after_clear = resend and self.facts.is_first_after_clear
        return intent_of(
            self.memory, self.facts.writer, arguments, resend=resend, is_first_after_clear=is_first_after_clear
        )

    def _act(self, decision: Decision, order: Order | None) -> None:
        """Take a step after which the table is read again."""
        match decision.action:
            case Action.RETRIEVE:
                self._retrieve()
            case Action.SEARCH:
                self._search(order)
            case Action.DISCARD:
                self._discard()
            case Action.SUPERSEDE:
                self.log.warning("Resending (resend=True): transfer '%s' may be sent", self.memory.draft_id)
                arguments = arguments_of(order.new, order.files) if order else {}
                self._remember(Action.SUPERSEDE, licence=digest(licence_of(self.facts.writer, arguments)))
            case Action.FORGET | Action.REVERT:
                self.log.warning("Transfer '%s' of an earlier try: %s", self.memory.draft_id, decision.action.value)
                self._remember(decision.action)
            case _:
                assert decision.reason is not None, decision
                raise self._refusal(decision.reason, order)

    def _retrieve(self) -> None:
        memory, is_same_key = self.memory, self.memory.scope.key_check == self.scope.key_check
        self.observer.set_current(memory.draft_id)
        if memory.scope.account != self.scope.account:
            self._seen = _Seen(ById.HIDDEN)
            return
        transfer = self.client.run(flows.find_transfer(memory.draft_id))
        if transfer is None:
            self._seen = _Seen(ById.GONE if is_same_key else ById.HIDDEN)
        elif not matches(memory.identity, identity_of(transfer)):  # an id alone does not identify a transfer
            self._seen = _Seen(ById.GONE)
        else:
            require_file_list(transfer)
            self.transfer = transfer
            self.observer.record_transfer(transfer)
            self._seen = _Seen(ById.DRAFT if transfer.is_draft else ById.SENT)

    def _search(self, order: Order | None) -> None:
        memory, likeness = self.memory, self.memory.question
        assert order is not None, "only what is to be delivered is searched for"
        assert likeness is not None, "there is a question"
        if self._cannot_be_searched:
            self._seen = self._seen._replace(search=Search.IMPOSSIBLE)
            return
        self.log.info("Checking with the service whether this was sent before")
        first = frozenset(identity_of(order.first)[1]) if order.first else None
        wanted = SearchTarget(identity_of(order.new), {source.name: source.size for source in order.find()}, first)
        known = {memory.draft_id, *(sent.draft_id for sent in memory.superseded)}
        found = find_like(
            self.client,
            self.facts,
            self.scope.account,
            wanted,
            likeness,
            known=known | ({order.first.id} if order.first else set()),
            is_of_other_key=self._is_of_other_key,
        )
        self._seen = self._seen._replace(search=Search.FOUND if found else Search.NONE, found=found)

    @property
    def _cannot_be_searched(self) -> bool:
        """Whether others may have sent this where the connection does not lead any more."""
        then, now = self.memory.scope, self.scope
        has_moved = (then.account, then.key_check) != (now.account, now.key_check)
        return has_moved and self._is_elsewhere and self.memory.question is not Likeness.EXACT

    def _discard(self) -> bool:
        """Remove the draft; return False if it turns out to be sent."""
        memory, self._is_writer = self.memory, False
        if memory.phase is Phase.HANDED_ON:  # the removal may still be under way when another try continues
            self.memory = msgspec.structs.replace(memory, phase=Phase.DRAFT)
            self.store.save(self.memory)
        if self.client.run(flows.discard_draft(memory.draft_id)) is DiscardOutcome.SENT:
            self._seen = _Seen(ById.NOT_RETRIEVED)
            return False
        self.observer.record_draft_removed(memory.draft_id)
        self.log.info("Discarded draft %s", memory.draft_id)
        self._remember(Action.DISCARD)
        return True

    def _remember(self, action: Action, **known: Any) -> None:
        """Store what follows from an action. What was seen before it is not known any more."""
        self.memory = self.memory.after(action, self.facts.writer, **known)
        self.store.save(self.memory)
        self._seen = _Seen()

    def _create(self, order: Order) -> Transfer:
        new = order.new
        order.find()  # a missing file must leave no draft behind
        transfer = self.client.run(flows.create_draft(new))
        self._remember(
            Action.CREATE,
            draft_id=transfer.id,
            identity=digest(identity_of(transfer)),
            input=self._digests(order),
            scope=self.scope,
            phase=Phase.SENDING if self._is_shared and not self.client.settings.rehearses else Phase.DRAFT,
        )
        self.transfer, self._is_writer = transfer, True
        self.observer.record_transfer(transfer)
        self.log.info("Created draft %s for %s", transfer.id, pluralize(len(new.recipients), "recipient"))
        self._on_draft(self)
        return transfer

    def _digests(self, order: Order) -> InputDigests:
        return InputDigests.of(order.new, order.files, self.client.settings.transfer_api_key)

    def _fill(self, sources: Sequence[Source], max_parallel_uploads: int) -> None:
        """Attach the files that the draft does not hold."""
        held, files = {file.name for file in (self.transfer and self.transfer.files) or ()}, dict(self.memory.files)
        for source in sources:
            if source.name in held:
                self._record_file(source.name, files[source.name])

        def on_attached(upload: FinishedUpload) -> None:
            source = upload.source
            location = source.location.encode(errors="replace").decode()  # Airflow stores only valid Unicode
            file = AttachedFile(source.size, upload.sha256, upload.file.id, source.fingerprint, location)
            files[source.name] = file
            self.memory = msgspec.structs.replace(self.memory, files=dict(files))
            self._record_file(source.name, file)

        with self._writing():
            attach_sources(
                self.client,
                self.memory.draft_id,
                [source for source in sources if source.name not in held],
                max_parallel=max_parallel_uploads,
                on_attached=on_attached,
                log=self.log,
            )

    def _record_file(self, name: str, file: AttachedFile) -> None:
        self.observer.record_file(self.memory.draft_id, name, file.size, file.sha256)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Note whether a call of the block may still be under way when it ends."""
        self._may_be_in_flight = True
        try:
            yield
        except DeferRequested as request:  # after all uploads have ended
            self._may_be_in_flight = request.was_in_doubt
            raise
        self._may_be_in_flight = False

    # The send.

    def _send(self, order: Order) -> Transfer:
        """Send the draft.

        :raises DraftOutdated: it was discarded instead.
        :raises AlreadyDelivered: its like was sent meanwhile.
        :raises TaskNotRunning, StateLost, StaleTry: another try decides now.
        :raises WrongTransfer: what was sent is not what was meant.
        """
        self._remember(Action.SEND)
        sending = SafeCall(endpoints.send_transfer(self.memory.draft_id))
        try:
            transfer = self.client.perform(sending, before_attempt=lambda: self._before_attempt(order))
        except BaseException:
            if not sending.may_be_applied and self.memory.phase is Phase.SENDING:
                self.memory = msgspec.structs.replace(self.memory, phase=Phase.DRAFT)
            raise
        self._on_sent()
        self.transfer = transfer
        self.observer.record_transfer(transfer)
        self.log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        check_sent(self.memory, transfer)
        return transfer

    def _before_attempt(self, order: Order) -> None:
        """Ask again whatever may have changed since the last attempt, or since the draft was prepared."""
        if self._has_waited and self.facts.is_mapped:  # the list may be in another order since, and its items cleared
            question = Likeness.EXACT.or_wider(self.memory.question)
            self.memory = msgspec.structs.replace(self.memory, question=question)
        self._has_waited, self._seen = True, _Seen()
        while True:
            decision = decide(Step.SEND, self._gather(order))
            match decision.action:
                case Action.SEND:
                    return
                case Action.CHECK:
                    assert order.is_outdated is not None, "there is something to check"
                    self._seen = self._seen._replace(is_outdated=_check_of(order.is_outdated()))
                case Action.CONFIRM:
                    self.facts.check_still_running()
                    self.store.check_still_own()
                    self._seen = self._seen._replace(is_wanted=Check.YES)
                case Action.DISCARD:
                    if not self._discard():
                        return  # an earlier attempt has sent it, as the next one finds out
                    raise DraftOutdated
                case Action.REFUSE:
                    found = self._seen.found
                    if not self._discard():
                        return
                    self._seen = self._seen._replace(found=found)
                    self._act(decision, order)
                case _:
                    self._act(decision, order)

    # The end.

    def _return(self, order: Order) -> Transfer:
        """Return the transfer that was sent; after a clear, only if its files are still those that were sent."""
        transfer, was_cleared = self.transfer, was_cleared_since(self.memory, self.facts.writer)
        assert transfer is not None, "it was looked at"
        self._on_draft(self)
        check_sent(self.memory, transfer)
        is_asked_anew = self.facts.is_first_after_clear if was_cleared is None else was_cleared
        if is_asked_anew and order.find_sources:
            self._check_files_unchanged(order, order.find_sources)
        self.log.info("Transfer %s (%s) was sent by an earlier try", transfer.id, transfer.status)
        return transfer

    def _check_files_unchanged(self, order: Order, find_sources: Callable[..., Sequence[Source]]) -> None:
        gone: list[OutboundTransferError] = []
        sources, attached = find_sources(gone), self.memory.files
        if gone:
            names = {source.name for source in sources}
            attached = {name: file for name, file in attached.items() if name in names}
        is_as_asked = self.memory.input is not None and "files" not in self.memory.input.differences(
            order.new, order.files
        )
        differences = describe_differences(attached, sources) if self.memory.files else []
        if gone and not is_as_asked:
            differences.append("other paths or patterns in files")
        if differences:
            what = "; ".join([*differences[:5], *map(str, gone[:5])])
            raise self._refusal(Reason.OTHER_INPUT, order, what)
        if gone:
            self.log.warning("Could not compare sent files with their sources, which are gone: %s", gone[0])

    def _refusal(self, reason: Reason, order: Order | None, differences: str = "") -> AlreadyDelivered:
        """Return the error, and remember what was found."""
        memory, found = self.memory, self._seen.found
        transfer_id = found.id if found else memory.draft_id
        if found:
            self._remember(
                Action.REFUSE,
                phase=Phase.SUSPECTED,
                draft_id=found.id,
                identity=digest(identity_of(found)),
                input=self._digests(order) if order else None,
                scope=self.scope,
                files={},
            )
        key = self.facts.delivery_key
        if not differences and memory.input and order:
            differences = ", ".join(memory.input.differences(order.new, order.files)) or "phones or security_answer"
        text = reason.value.format(
            subject=f"Delivery key {key!r}" if key else "This run",
            transfer_id=transfer_id,
            differences=differences or "another delivery_key",
            then=memory.scope.account,
            now=self.scope.account,
            resend="give it another delivery_key." if key else "set resend=True and clear the task.",
            new_delivery="give it another delivery_key."
            if key
            else "trigger a new DAG run, or set resend=True and clear the task.",
        )
        return AlreadyDelivered(text)

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
            with open_client() as self.client:
                if self.transfer is None:
                    self._retrieve()
                if self.transfer and self.transfer.is_draft:
                    self._discard()
        elif phase is Phase.DRAFT and self._is_writer and not self._may_be_in_flight:
            self._remember(Action.RESUME, phase=Phase.HANDED_ON)
        elif phase is Phase.EMPTY:
            self.store.save(self.memory)


def _check_of(is_so: bool) -> Check:
    return Check.YES if is_so else Check.NO
