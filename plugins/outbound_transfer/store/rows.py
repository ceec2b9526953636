"""Rows of the table of deliveries as tasks write them, and statuses in tables. SQLAlchemy is not imported."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

from outbound_transfer.client.models import CANCELED, COMPLETE, DRAFT, EXPIRED, PARTIAL

#: Statuses that no longer change (service-api.md, R18).
TERMINAL_STATUSES: Final = (COMPLETE, EXPIRED, CANCELED)

#: Status of a transfer that the service has no longer. It knows neither this one nor those below.
DELETED: Final = "deleted"

#: Status of a draft that a rehearsal has discarded instead of sending it; that a person is asked to approve; and whose
#: send has begun, until its outcome is known.
REHEARSED: Final = "rehearsed"
WAITS_FOR_APPROVAL: Final = "waits for approval"
IN_DOUBT: Final = "in doubt"

#: Statuses of a delivery without a draft: its last attempt failed; it is at work, was skipped, or discarded its draft.
FAILED: Final = "failed"
NO_DRAFT: Final = "no draft"

#: What the column ``phase`` says of a draft that is handed on, while a person is asked to approve it.
ASKED: Final = "asked"


def status_rank(status: str) -> int:
    """Return how late a status is: the rank of a transfer's status never decreases (service-api.md, R18)."""
    if status in (*TERMINAL_STATUSES, DELETED):
        return 3
    # A transfer with an unknown status (service-api.md, R5) was sent.
    return {DRAFT: 0, PARTIAL: 2}.get(status, 1)


class Stored(NamedTuple):
    """A row as a delivery keeps it.

    :ivar dag_id: of the task instance that has claimed it last, as the three after it; "" if the page does not show it.
    """

    is_keyed: bool
    account: str
    transfer_id: str
    phase: str
    twin: str
    run_started: str
    memory: str
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    try_number: int = 0
    is_rehearsal: bool = False
    security: str = ""


class Kept(NamedTuple):
    """A copy of a row's page columns under another key, with this memory.

    :ivar error: "" for that of the row.
    """

    key: str
    row: Stored
    error: str = ""


class Shown(NamedTuple):
    """A transfer as the service shows it, for the page.

    :ivar recipients: ``email``, ``name`` and ``picked_up_at`` (ISO 8601, or None) of each.
    """

    status: str
    subject: str
    recipient_count: int
    picked_up_count: int
    sent_at: datetime | None
    expires_at: datetime | None
    recipients: list[dict[str, Any]]
