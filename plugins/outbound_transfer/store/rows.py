"""A row of the table of deliveries, as tasks write it; no SQLAlchemy is imported."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

#: What the column ``phase`` says of a draft that is handed on, while a person is asked to approve it.
ASKED: Final = "asked"


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
