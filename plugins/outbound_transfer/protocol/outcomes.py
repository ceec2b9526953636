"""What a transfer's status means for whoever waits for it (service.md, States and transitions)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from outbound_transfer.protocol.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL, PENDING, Transfer

#: A transfer of these statuses does not change any more.
FINAL: Final = (COMPLETE, EXPIRED, CANCELED)

KNOWN_STATUSES: Final = (DRAFT, PENDING, PARTIAL, COMPLETE, CANCELED, EXPIRED)


class Outcome(str, Enum):
    """How a wait ends."""

    SUCCEED = "succeed"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class OutcomeRules:
    """The user's choice of what each final status means.

    :ivar accept_partial: one recipient is enough: the wait succeeds as soon as anybody has collected.
    """

    on_expired: Outcome = Outcome.FAIL
    on_canceled: Outcome = Outcome.FAIL
    accept_partial: bool = False

    def of(self, transfer: Transfer) -> Outcome | None:
        """How the wait for ``transfer`` ends, or None while it goes on.

        A status that this list does not know ends no wait (Versioning: the set is open).
        """
        collected = transfer.status == PARTIAL or transfer.picked_up
        if transfer.status == COMPLETE or (self.accept_partial and collected and transfer.status != CANCELED):
            return Outcome.SUCCEED
        return {EXPIRED: self.on_expired, CANCELED: self.on_canceled}.get(transfer.status)


def story(transfer: Transfer) -> str:
    """One line on where a transfer stands."""
    waiting = [recipient.email for recipient in transfer.recipients if recipient.picked_up_at is None]
    missing = f"; not by {', '.join(waiting[:5])}{' …' if len(waiting) > 5 else ''}" if waiting else ""
    return (
        f"transfer {transfer.id} is {transfer.status}: picked up by {transfer.picked_up} of "
        f"{len(transfer.recipients)}{missing}"
    )
