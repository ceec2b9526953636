"""What a task is asked to deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbound_transfer.files.sources import Source
    from outbound_transfer.protocol.models import NewTransfer, Transfer


@dataclass
class Order:
    """What a task is asked to deliver.

    :ivar files: the operator's argument, normalized.
    :ivar find_sources: finds the files; takes a list for the errors of those that are gone if they are only compared
        with what was sent. None if another task attaches them.
    :ivar is_outdated: checked right before each attempt at the send; None if nothing can change.
    :ivar first: the transfer that this delivers again; None if it is not a second delivery.
    """

    new: NewTransfer
    files: Any = None
    find_sources: Callable[..., Sequence[Source]] | None = None
    is_outdated: Callable[[], bool] | None = None
    first: Transfer | None = None

    _found: Sequence[Source] | None = None

    def find(self) -> Sequence[Source]:
        """Return the files, which are found once."""
        if self._found is None:
            self._found = self.find_sources() if self.find_sources else ()
        return self._found
