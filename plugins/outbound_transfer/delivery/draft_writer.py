"""The one writer of a draft. It stores each step before it takes the next, so that a crash at any point is safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from outbound_transfer.client import Discarded
from outbound_transfer.delivery.decision import Action, Phase
from outbound_transfer.delivery.memory import InputDigests, Memory, digest
from outbound_transfer.delivery.sending import Sending
from outbound_transfer.files.attached import AttachedFile
from outbound_transfer.files.uploads import FinishedUpload, attach_sources
from outbound_transfer.protocol.identity import identity_of
from outbound_transfer.protocol.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client import Client
    from outbound_transfer.delivery.memory_store import MemoryStore
    from outbound_transfer.delivery.observer import DeliveryObserver
    from outbound_transfer.files.sources import Source
    from outbound_transfer.protocol.models import NewTransfer, Transfer


class DraftWriter:
    """Creates, fills and sends a draft, or discards it, in one try of a delivery.

    :ivar memory: what is remembered of the delivery, as this try knows it.
    """

    def __init__(
        self, client: Client, store: MemoryStore, log: Logger, memory: Memory, observer: DeliveryObserver
    ) -> None:
        self.client, self.store, self.memory = client, store, memory
        self._log, self._observer, self._writer, self._scope = log, observer, memory.writer, memory.scope
        self._has_taken_over = self._may_be_in_flight = False
        self._sending: Sending | None = None

    @property
    def has_stopped(self) -> bool:
        """Whether this try has worked on the draft, and none of its calls may still be under way."""
        return self._has_taken_over and not self._may_be_in_flight

    def keep(self, memory: Memory) -> None:
        """Store what is remembered from now on."""
        self.memory = memory
        self.store.save(memory)

    def remember(self, action: Action, **known: Any) -> None:
        """Store what follows from an action."""
        self.keep(self.memory.after(action, self._writer, **known))

    def create(self, new: NewTransfer, input_: InputDigests, phase: Phase) -> Transfer:
        transfer = self.client.create_transfer(new)
        identity = digest(identity_of(transfer))
        known = {"draft_id": transfer.id, "identity": identity, "input": input_, "scope": self._scope, "phase": phase}
        self.remember(Action.CREATE, **known)
        self._has_taken_over = True
        self._observer.record_transfer(transfer)
        self._log.info("Created draft %s for %s", transfer.id, pluralize(len(new.recipients), "recipient"))
        return transfer

    def resume(self) -> None:
        """Withdraw the word that the draft's writer has stopped: this try is its writer now."""
        self.remember(Action.RESUME, scope=self._scope)
        self._has_taken_over = True
        self._log.info("Resuming draft %s", self.memory.draft_id)

    def discard(self, *, is_draft: bool) -> bool:
        """Remove the draft; return False if it turns out to be sent.

        :param is_draft: it was seen to be one.
        """
        self._has_taken_over = False
        may_be_sent = self.memory.phase is Phase.SENDING and not (self._sending and not self._sending.may_be_applied)
        if is_draft or not may_be_sent:
            # Nobody has sent it. Should the removal end unheard, or late, the next try neither doubts nor continues it.
            self.keep(replace(self.memory, phase=Phase.DRAFT))
        draft_id = self.memory.draft_id
        if self.client.discard_transfer(draft_id) is Discarded.SENT:
            self.keep(replace(self.memory, phase=Phase.SENDING))  # another process has sent it meanwhile
            return False
        self._observer.record_draft_removed(draft_id)
        self._log.info("Discarded draft %s", draft_id)
        self.remember(Action.DISCARD)
        return True

    def fill(self, draft: Transfer, sources: Sequence[Source], max_parallel: int) -> None:
        """Attach the files that the draft does not hold."""
        held, files = {file.name for file in draft.files or ()}, dict(self.memory.files)

        def record(source: Source) -> None:
            file = files[source.name]
            self._observer.record_file(draft.id, source.name, file.size, file.sha256)

        def on_attached(upload: FinishedUpload) -> None:
            files[upload.source.name] = AttachedFile.of(upload)
            self.memory = replace(self.memory, files=dict(files))
            record(upload.source)

        for source in sources:
            if source.name in held:
                record(source)
        missing = [source for source in sources if source.name not in held]
        self._may_be_in_flight = True
        attach_sources(
            self.client, draft.id, missing, max_parallel=max_parallel, on_attached=on_attached, log=self._log
        )
        self._may_be_in_flight = False

    def send(self, before_attempt: Callable[[], object]) -> Transfer:
        """Send the draft, and return what the service says of it."""
        self.remember(Action.SEND)
        draft_id = self.memory.draft_id
        self._sending = sending = Sending(self.client, draft_id, self._observer)
        try:
            transfer = sending.send(before_attempt)
        except BaseException:
            if not sending.may_be_applied and self.memory.phase is Phase.SENDING:
                self.memory = replace(self.memory, phase=Phase.DRAFT)
            raise
        self._observer.record_transfer(transfer)
        self._log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        return transfer
