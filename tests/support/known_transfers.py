"""Eight transfers and five events of known days."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from outbound_transfer.client.events import Event, Page
from outbound_transfer.store.events import EventStore
from outbound_transfer.store.tables import RECIPIENTS, TRANSFERS, Tables
from support import sample_rows

FAILED_AUTHENTICATION: Final = "authentication_failed"
OTHER_ACCOUNT: Final = "other.example.com"

#: Account, status, days ago, time of the send (UTC), and for each recipient the seconds to the pickup.
_TRANSFERS: Final[tuple[tuple[str, str, int, str, Sequence[int | None]], ...]] = (
    (sample_rows.ACCOUNT, "complete", 10, "23:30", (3_600, 7_200)),
    (sample_rows.ACCOUNT, "expired", 9, "00:30", (10_800, None)),
    (sample_rows.ACCOUNT, "canceled", 9, "12:00", (60, None, None)),
    (sample_rows.ACCOUNT, "pending", 5, "12:00", (None,)),
    (sample_rows.ACCOUNT, "partial", 5, "12:00", (1_800, None)),
    (OTHER_ACCOUNT, "complete", 5, "12:00", (5_400,)),
    (sample_rows.ACCOUNT, "pending", 1, "12:00", (None,) * 4),
    (sample_rows.ACCOUNT, "deleted", 1, "12:00", (None,)),
)
#: Type, days ago, time. The last has no time: it counts on the day of its loading.
_EVENTS: Final = (
    ("transfer_sent", 10, "23:30"),
    (FAILED_AUTHENTICATION, 5, "00:10"),
    (FAILED_AUTHENTICATION, 5, "23:50"),
    (FAILED_AUTHENTICATION, 1, "23:59"),
    (FAILED_AUTHENTICATION, 0, None),
)

#: Days ago on which a transfer was sent.
SENT: Final = (10, 9, 5, 1)


def fill(warehouse: Tables, now: datetime) -> None:
    """Make the tables and fill them with these transfers and events, of days before ``now``."""
    sample_rows.make_tables(warehouse)
    seen = now
    transfers, recipients = [], []
    for number, (account, status, days_ago, time, seconds) in enumerate(_TRANSFERS):
        sent, key = _at(now, days_ago, time), (account, f"t{number}")
        expires = sent + timedelta(days=3 if status == "expired" else 14)
        times = [None if each is None else sent + timedelta(seconds=each) for each in seconds]
        counts = len(times), sum(each is not None for each in times)
        span = sent, expires
        transfers.append((*key, sample_rows.CONN_ID, status, f"Report {number}", *span, *counts, seen, seen))
        # Both addresses of a transfer may be the same.
        recipients += [(*key, at, "ann@example.com", "Ann", each) for at, each in enumerate(times, 1)]
    sample_rows.insert(warehouse, TRANSFERS, transfers)
    sample_rows.insert(warehouse, RECIPIENTS, recipients)
    store = EventStore(warehouse, sample_rows.ACCOUNT, clock=lambda: now)
    store.get_or_create_cursor()
    events = tuple(
        Event(f"e{line}", type_, _at(now, ago, time).isoformat() if time else None, "{}", None, line)
        for line, (type_, ago, time) in enumerate(_EVENTS, 1)
    )
    store.load_page(Page(0, len(events), False, events, ()))


def _at(now: datetime, days_ago: int, time: str) -> datetime:
    return datetime.fromisoformat(f"{now - timedelta(days=days_ago):%Y-%m-%d}T{time}").replace(tzinfo=UTC)
