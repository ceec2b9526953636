"""A transfer's status in words (service-api.md, R17), and what became of the transfer of a failed task."""

from __future__ import annotations

from typing import Final

import msgspec

from outbound_transfer.client.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL, PENDING, Transfer

#: All documented statuses (service-api.md, R17).
KNOWN_STATUSES: Final = (DRAFT, PENDING, PARTIAL, COMPLETE, CANCELED, EXPIRED)


#: Appended to log lines about any other status.
UNKNOWN_STATUS_HINT: Final = (
    "; this status is unknown to this version of the provider, so the wait continues. "
    "Upgrade the provider if a later version knows the status"
)

#: Appended to log lines about a draft.
DRAFT_HINT: Final = (
    "; it was never sent, so nobody can pick it up, and the wait continues. Check that a task of this run sends it"
)

STATUS_HINTS: Final = (UNKNOWN_STATUS_HINT, DRAFT_HINT)

#: The XCom of a task that did not succeed, with the fields of :class:`TransferOutcome`.
OUTCOME_KEY: Final = "outcome"


class TransferOutcome(msgspec.Struct, frozen=True):
    """What became of the transfer of a task that did not succeed: for callbacks, notifiers, other tasks.

    What is not known is None, never "nobody". Addresses are in it, phones never: the service returns none.

    :ivar transfer_id: the transfer.
    :ivar reason: why the task did not succeed.
    :ivar status: as it was last read; also None after a send in doubt.
    :ivar subject: of the transfer.
    :ivar picked_up: addresses of the recipients who have picked up.
    :ivar not_picked_up: addresses of the others.
    """

    transfer_id: str
    reason: str
    status: str | None = None
    subject: str | None = None
    picked_up: list[str] | None = None
    not_picked_up: list[str] | None = None

    @classmethod
    def from_transfer(cls, transfer: Transfer, reason: str) -> TransferOutcome:
        """Return the outcome of a transfer that was read."""
        return cls(transfer.id, reason, transfer.status, transfer.subject, transfer.picked_up, transfer.not_picked_up)


def status_hint(transfer: Transfer) -> str:
    """Return what to append to a log line about a status that a wait does not expect; "" for the others."""
    if transfer.is_draft:
        return DRAFT_HINT
    return "" if transfer.status in KNOWN_STATUSES else UNKNOWN_STATUS_HINT


def describe(transfer: Transfer) -> str:
    """Describe the state of a transfer in one line, with up to five recipients who have not picked up."""
    outstanding = transfer.not_picked_up
    not_by = f"; not by {', '.join(outstanding[:5])}{' …' if len(outstanding) > 5 else ''}" if outstanding else ""
    return (
        f"transfer {transfer.id} is {transfer.status}: picked up by {len(transfer.picked_up)} of "
        f"{len(transfer.recipients)}{not_by}"
    )


def outcome_of(error: object) -> TransferOutcome | None:
    """Return what became of a task's transfer, from the error that ended the task.

    :param error: in a callback ``context.get("exception")``.
    :return: None if the task had no transfer yet, or the error is not from a task of this provider.
    """
    outcome = getattr(error, "outcome", None)
    return outcome if isinstance(outcome, TransferOutcome) else None
