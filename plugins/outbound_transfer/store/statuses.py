"""Statuses of transfers and deliveries as tables have them: those of the service, and some that it does not know."""

from __future__ import annotations

from typing import Final

from outbound_transfer.client.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL

#: Statuses that no longer change (service-api.md, R18).
TERMINAL_STATUSES: Final = (COMPLETE, EXPIRED, CANCELED)

#: Status of a draft that a rehearsal has discarded instead of sending it. The service does not know it.
REHEARSED: Final = "rehearsed"

#: Status of a transfer that the service has no longer.
DELETED: Final = "deleted"

#: Statuses of a delivery without a draft: its last attempt failed; it is at work, was skipped, or discarded its draft.
FAILED: Final = "failed"
NO_DRAFT: Final = "no draft"

#: Status of a draft that a person is asked to approve. The service does not know it.
WAITS_FOR_APPROVAL: Final = "waits for approval"

#: Status of a draft whose send has begun, until it is known what became of that. The service does not know it.
IN_DOUBT: Final = "in doubt"


def status_rank(status: str) -> int:
    """Return how late a status is: the rank of a transfer's status never decreases (service-api.md, R18)."""
    if status in (*TERMINAL_STATUSES, DELETED):
        return 3
    # A transfer with an unknown status (service-api.md, R5) was sent.
    return {DRAFT: 0, PARTIAL: 2}.get(status, 1)
