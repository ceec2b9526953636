"""What a try of a delivery knows. It is gathered in steps, as some cost a call, and their order is the safety."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from outbound_transfer.delivery.check import require_file_list
from outbound_transfer.delivery.decision import ById, Check, Evidence, Input, Phase, Search
from outbound_transfer.delivery.memory import InputDigests, Likeness, Memory, Scope
from outbound_transfer.delivery.search import SearchTarget, UnlikeTransfers, find_like
from outbound_transfer.files.attached import holds_exactly, holds_only
from outbound_transfer.protocol.digests import matches
from outbound_transfer.protocol.errors import DraftChanged
from outbound_transfer.protocol.identity import identity_of

if TYPE_CHECKING:
    from outbound_transfer.client import Client
    from outbound_transfer.delivery.observer import DeliveryObserver
    from outbound_transfer.delivery.order import Order
    from outbound_transfer.delivery.task_facts import TaskFacts
    from outbound_transfer.protocol.models import Transfer


class Seen(NamedTuple):
    """What a try has seen since its last action."""

    by_id: ById = ById.NOT_RETRIEVED
    search: Search = Search.NOT_SEARCHED
    found: Transfer | None = None
    is_outdated: Check = Check.OPEN
    is_wanted: Check = Check.OPEN


class EvidenceCollector:
    """Gathers what one try knows.

    :param scope: where the connection leads.
    :param is_of_other_key: returns whether a transfer was delivered under another delivery key.
    :ivar transfer: the draft or the sent transfer, as the service showed it last; None before it is known.
    :ivar is_shared: other tasks fill and send the draft.
    """

    def __init__(
        self,
        client: Client,
        facts: TaskFacts,
        scope: Scope,
        observer: DeliveryObserver,
        is_of_other_key: Callable[[str], bool],
    ) -> None:
        self.client, self._facts, self._scope, self._observer = client, facts, scope, observer
        self._is_of_other_key = is_of_other_key
        self.transfer: Transfer | None = None
        self.is_shared = self._may_be_elsewhere = False
        self._seen: Seen = Seen()
        self._unlike = UnlikeTransfers()
        self._seen_with: Memory | None = None

    def with_question(self, memory: Memory, order: Order) -> Memory:
        """Return the memory with the question whether somebody else may have sent this, and what is to be delivered."""
        is_own = memory.input is not None and not memory.input.differences(order.new, order.files)
        self._may_be_elsewhere = memory.question is not None or self._facts.has_other_indexes()
        if question := self._facts.find_question(memory, is_own=is_own):
            self._may_be_elsewhere |= is_own or memory.input is None
            if self.is_shared:  # its files are unknown, and so is whether the index still has its own item
                question = question.or_wider(Likeness.SAME_PEOPLE)
            memory = msgspec.structs.replace(memory, question=question.or_wider(memory.question))
        if memory.input is None:  # so that a later try knows it, should this one not come to the draft
            memory = msgspec.structs.replace(memory, input=self.digests(order))
        return memory

    def digests(self, order: Order) -> InputDigests:
        return InputDigests.of(order.new, order.files, self.client.settings.transfer_api_key)

    def seen_of(self, memory: Memory) -> Seen:
        """Return what was seen since this was remembered: what was seen before an action is not known after it."""
        return self._seen if self._seen_with is memory else Seen()

    def note(self, memory: Memory, **seen: Any) -> None:
        """Add what was seen."""
        self._seen, self._seen_with = self.seen_of(memory)._replace(**seen), memory

    def forget(self) -> None:
        """Let everything be asked again."""
        self._seen_with = None

    def gather(self, memory: Memory, order: Order | None) -> Evidence:
        """Return what is known now.

        :param order: None if nothing is to be delivered here.
        """
        seen, compared = self.seen_of(memory), self._compare(memory, order)
        # What other tasks fill is searched for by the one that sends it, as only then its files are known.
        is_searched_here = not self.is_shared or self._cannot_be_searched(memory)
        return Evidence(
            memory.phase,
            compared,
            seen.by_id,
            order is not None and memory.question is not None and is_searched_here,
            seen.search,
            seen.is_outdated if order and order.is_outdated else Check.NO,
            seen.is_wanted,
        )

    def _compare(self, memory: Memory, order: Order | None) -> Input:
        if order is None:
            return Input.OTHER
        if memory.input is None:
            return Input.SAME
        is_same_key = memory.scope.key_check == self._scope.key_check
        compared = memory.input.compare(order.new, self.client.settings.transfer_api_key, is_same_key=is_same_key)
        draft = self.transfer if self.transfer and self.seen_of(memory).by_id is ById.DRAFT else None
        is_continued = compared is Input.SAME and memory.phase is Phase.HANDED_ON
        if is_continued and draft and draft.files:
            return Input.SAME if holds_only(draft.files, memory.files, order.find()) else Input.OTHER
        return compared

    def retrieve(self, memory: Memory) -> None:
        """Ask the service what became of the remembered draft."""
        is_same_key = memory.scope.key_check == self._scope.key_check
        self._observer.set_current(memory.draft_id)
        if memory.scope.account != self._scope.account:
            self.note(memory, by_id=ById.HIDDEN)
            return
        transfer = self.client.find_transfer(memory.draft_id)
        if transfer is None and self._facts.was_discarded(self._scope.account, memory.draft_id):
            self.note(memory, by_id=ById.DISCARDED)
        elif transfer is None:
            self.note(memory, by_id=ById.GONE if is_same_key else ById.HIDDEN)
        elif not matches(memory.identity, identity_of(transfer)):  # an id alone does not identify a transfer
            self.note(memory, by_id=ById.GONE)
        else:
            require_file_list(transfer)
            self.transfer = transfer
            self._observer.record_transfer(transfer)
            self.note(memory, by_id=ById.DRAFT if transfer.is_draft else ById.SENT)

    def check_unchanged(self, memory: Memory) -> Transfer:
        """Read the draft again: during a wait, another program, or a backup that was restored, may have changed it.

        :return: what it is now: also what was sent.
        :raises DraftChanged: it is gone, or holds other files than are remembered.
        """
        self.retrieve(memory)
        transfer, by_id = self.transfer, self.seen_of(memory).by_id
        if transfer and (by_id is ById.SENT or (by_id is ById.DRAFT and holds_exactly(transfer, memory.files))):
            return transfer
        self.transfer = None  # it is not this task's to discard
        raise DraftChanged(
            f"Draft {memory.draft_id} is gone, or was changed by somebody else while this task waited. Nothing is "
            "sent; the next try makes a new one"
        )

    def search(self, memory: Memory, order: Order) -> None:
        """Ask the service whether it has sent the like."""
        assert memory.question is not None, "there is a question"
        first = frozenset(identity_of(order.first)[1]) if order.first else None
        files = None if self.is_shared else {source.name: source.size for source in order.find()}
        wanted = SearchTarget(identity_of(order.new), files, first)
        found = find_like(
            self.client,
            self._facts,
            self._scope.account,
            wanted,
            memory.question,
            unlike=self._unlike,
            known={memory.draft_id, order.first.id} if order.first else {memory.draft_id},
            is_of_other_key=self._is_of_other_key,
        )
        if self._cannot_be_searched(memory):
            self.note(memory, search=Search.IMPOSSIBLE)
        else:
            self.note(memory, search=Search.FOUND if found else Search.NONE, found=found)

    def _cannot_be_searched(self, memory: Memory) -> bool:
        """Return whether others may have sent this where the connection does not lead any more."""
        then, now = memory.scope, self._scope
        has_moved = (then.account, then.key_check) != (now.account, now.key_check)
        return has_moved and self._may_be_elsewhere and memory.question is not Likeness.EXACT
