"""What a task is asked to deliver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from outbound_transfer.files.attached import AttachedFile
    from outbound_transfer.files.sources import Source
    from outbound_transfer.protocol.models import NewTransfer, Transfer

#: Returns whether a person has approved what a draft holds, given it and the SHA-256 of its files by name.
ApprovalCheck: TypeAlias = "Callable[[Transfer, Mapping[str, str]], bool]"


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

    def approves(self, draft: Transfer, attached: Mapping[str, AttachedFile]) -> bool:
        """Return whether a person has approved what a draft holds: it is sent as it is then, whatever its sources."""
        files = {name: each.sha256 for name, each in attached.items()}
        return self.is_approved is not None and self.is_approved(draft, files)

    def find(self) -> Sequence[Source]:
        """Return the files, which are found once."""
        if self._found is None:
            self._found = self.find_sources() if self.find_sources else ()
        return self._found
