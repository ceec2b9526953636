"""Rows that the page reads from the warehouse, one type per query.

Values are as the database drivers return them: a timestamp may be a datetime or ISO 8601 text, and JSON may be decoded.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class DeliveryRow(NamedTuple):
    """A delivery of the ledger, with the newer of the ledger's and the listing's status and pickups."""

    account: str
    transfer_id: str
    conn_id: str
    dag_id: str
    task_id: str
    run_id: str
    map_index: Any
    try_number: Any
    subject: str
    status: str
    error: str | None
    files: Any
    size_bytes: Any
    recipient_count: Any
    picked_up_count: Any
    created_at: Any
    sent_at: Any
    expires_at: Any
    finished_at: Any


class OutcomeRow(NamedTuple):
    """The number of deliveries in one bar of the chart with one status. ``bar`` counts from 0, oldest first."""

    bar: Any
    status: Any
    delivery_count: Any


class PickupRow(NamedTuple):
    """A pickup, with the time at which its transfer was sent."""

    sent_at: Any
    picked_up_at: Any


class LedgerRecipientsRow(NamedTuple):
    """The recipients of a transfer as the ledger has them: JSON."""

    account: str
    transfer_id: str
    recipients: Any


class RecipientRow(NamedTuple):
    """A recipient of a transfer. ``picked_up_at`` is None until the recipient has picked up."""

    account: str
    transfer_id: str
    email: str
    name: str
    picked_up_at: Any


class FeedRow(NamedTuple):
    """The state of one account's event feed.

    ``polled_at``, ``status`` and ``note`` describe the last poll; ``loaded_at`` and ``has_more`` the last loaded page.
    All five are None if no poll is logged.
    """

    account: str
    cursor: Any
    updated_at: Any
    polled_at: Any
    status: Any
    note: str | None
    loaded_at: Any
    has_more: Any
    rejected_count: Any


class CallRow(NamedTuple):
    """Calls of one connection in one minute: all, those answered 429, and those that failed otherwise."""

    conn_id: str
    minute_at: Any
    made: Any
    limited: Any
    failed: Any


class AllowanceRow(NamedTuple):
    """What a key is granted, and until when its calls are reserved."""

    conn_id: str
    calls_per_minute: Any
    reserved_until: Any


class LeaseRow(NamedTuple):
    """Which triggerer polls for all that wait with a key; None if none does."""

    conn_id: str
    holder: str | None


class DagRow(NamedTuple):
    """A DAG that has deliveries."""

    dag_id: str


class CursorRow(NamedTuple):
    """The cursor of one account's event feed."""

    account: str
    cursor: Any
    updated_at: Any


class PollRow(NamedTuple):
    """A poll of an event feed. All values are None if none is logged."""

    polled_at: Any = None
    status: Any = None
    note: str | None = None
    has_more: Any = None


class RejectedRow(NamedTuple):
    """The number of rejected lines of one account's event feed."""

    account: str
    rejected_count: Any
