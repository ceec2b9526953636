"""What a task is asked to deliver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from outbound_transfer.files.attached import holds_exactly

if TYPE_CHECKING:
    from outbound_transfer.delivery.memory import Memory
    from outbound_transfer.files.sources import Source
    from outbound_transfer.protocol.models import NewTransfer, Transfer

#: Returns whether a person has approved what a draft holds, given it, the SHA-256 of its files by name, and the ids of
#: what was sent before.
ApprovalCheck: TypeAlias = "Callable[[Transfer, Mapping[str, str], Sequence[str]], bool]"


@dataclass
class Order:
    """What a task is asked to deliver.

    :ivar files: the operator's argument, normalized.
    :ivar find_sources: finds the files; takes a list for the errors of those that are gone if they are only compared
        with what was sent. None if another task attaches them.
    :ivar is_outdated: checked right before each attempt at the send; None if nothing can change.
    :ivar is_approved: checked right before each attempt at the send; None if nobody need approve it.
    :ivar first: the transfer that this delivers again; None if it is not a second delivery.
    """

    new: NewTransfer
    files: Any = None
    find_sources: Callable[..., Sequence[Source]] | None = None
    is_outdated: Callable[[], bool] | None = None
    is_approved: ApprovalCheck | None = None
    first: Transfer | None = None

    _found: Sequence[Source] | None = None

    def approves(self, draft: Transfer, memory: Memory) -> bool:
        """Return whether a person has approved what a draft holds: it is sent as it is then, whatever its sources."""
        if self.is_approved is None or not holds_exactly(draft, memory.files):
            return False
        files = {name: each.sha256 for name, each in memory.files.items()}
        return self.is_approved(draft, files, memory.superseded_ids())

    def find(self) -> Sequence[Source]:
        """Return the files, which are found once."""
        if self._found is None:
            self._found = self.find_sources() if self.find_sources else ()
        return self._found
