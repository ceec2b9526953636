"""The rows of the table of deliveries, as their users see them; no SQLAlchemy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol


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


class Rows(Protocol):
    """The table of deliveries."""

    def read(self, key: str) -> tuple[int, str]:
        """Return a row's version and memory; 0 and "" if there is none."""

    def put(self, key: str, version: int, row: Stored) -> bool:
        """Insert a row (version 0), or update it if it still has this version; return whether it was stored."""

    def keep(self, key: str, other: str, row: Stored, error: str = "") -> None:
        """Copy a row's page columns to another key, with this memory, unless that key exists."""

    def find(self, transfer_id: str) -> list[tuple[str, str]]:
        """Return the keys and accounts of the rows of a transfer."""

    def find_twin(self, key: str, twin: str, run_started: str) -> str:
        """Return the transfer id of another row that is sending the same; "" if there is none.

        :param run_started: only of rows that were claimed in a run that started then; any if it is "".
        """

    def show(self, account: str, conn_id: str, transfers: Mapping[str, Shown | None]) -> None:
        """Store the status of transfers, by id, in the rows that exist; None if a transfer was deleted."""

    def show_error(self, key: str, error: str) -> None:
        """Store an attempt's error, as one line."""

    def count_in_doubt(self, conn_id: str) -> int:
        """Return how many recent deliveries of a connection stay in doubt: longer than a task takes to find out."""
