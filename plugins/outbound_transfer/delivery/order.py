"""What a task is asked to deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from outbound_transfer.client.new_transfer import NewTransfer
    from outbound_transfer.files.sources import Source


@dataclass
class Order:
    """What a task is asked to deliver.

    :ivar find_sources: finds the files; takes a list for the errors of those that are gone if they are only compared
        with what was sent. None if other tasks attach them.
    :ivar is_outdated: called right before each attempt at the send: whether to make another draft; None if nothing can
        change.
    :ivar chosen: to whom of the recipients of another transfer; see :class:`.RedeliverFilesOperator`.
    """

    new: NewTransfer
    find_sources: Callable[..., Sequence[Source]] | None = None
    is_outdated: Callable[[], bool] | None = None
    chosen: tuple[str, list[int]] | None = None

    _found: Sequence[Source] | None = None

    def find(self) -> Sequence[Source]:
        """Return the files, which are found once."""
        if self._found is None:
            self._found = self.find_sources() if self.find_sources else ()
        return self._found

    def arguments(self) -> dict[str, Any]:
        """Return what a draft is made from, by argument. Phones and the answer are left out: they could be guessed."""
        # Each recipient gets an email of their own: the order, perhaps that of a set or a query, has no meaning.
        recipients = sorted([one.email, one.name] for one in self.new.recipients)
        plain = {**msgspec.structs.asdict(self.new), "recipients": recipients}
        del plain["security_answer"]
        return plain
