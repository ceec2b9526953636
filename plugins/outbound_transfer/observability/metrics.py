"""The provider's metrics. All are emitted through Airflow's ``stats``, and listed in docs/observability.md."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from outbound_transfer.airflow_compat.names import get_stats

log = logging.getLogger(__name__)

#: Characters that StatsD does not accept in a name. Tags are part of the name there.
_INVALID_CHARACTERS: Final = re.compile(r"[^a-zA-Z0-9_.-]")

#: Maximum length of a tag's value. Airflow drops a name that is longer than 250 characters with its tags.
_MAX_LENGTH: Final = 80


class MetricType(Enum):
    """As StatsD names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"


COUNTER, GAUGE, TIMER = MetricType


@dataclass(frozen=True)
class Metric:
    """One metric.

    :ivar unit: of its value. Timers reach StatsD in milliseconds.
    :ivar tags: names of its tags. Their values are cut, and invalid characters in them replaced.
    :ivar description: when it is emitted.
    """

    name: str
    type: MetricType
    unit: str
    tags: tuple[str, ...]
    description: str

    @property
    def full_name(self) -> str:
        return f"outbound_transfer.{self.name}"

    def emit(self, value: float = 1, **tags: object) -> None:
        """Emit the increment of a counter, the value of a gauge, or the seconds of a timer. Never raises."""
        try:
            tags = {name: _INVALID_CHARACTERS.sub("_", str(tags[name]))[:_MAX_LENGTH] for name in self.tags}
            stats = get_stats()
            if self.type is COUNTER:
                stats.incr(self.full_name, round(value), tags=tags)
            elif self.type is GAUGE:
                stats.gauge(self.full_name, value, tags=tags)
            else:
                stats.timing(self.full_name, value * 1_000, tags=tags)
        except Exception as error:
            log.debug("Could not emit the metric %s: %s", self.full_name, error)


REQUESTS: Final = Metric(
    "requests",
    COUNTER,
    "requests",
    ("operation", "status", "conn_id"),
    "an attempt of a call finishes; `status` is the HTTP status, or `none` without a response",
)
REQUEST_DURATION: Final = Metric(
    "request_duration", TIMER, "milliseconds", ("operation", "status", "conn_id"), "an attempt of a call finishes"
)
RETRIES: Final = Metric(
    "retries", COUNTER, "requests", ("operation", "conn_id"), "a call failed and will be retried after a delay"
)
RATE_LIMIT_WAIT: Final = Metric(
    "rate_limit_wait_seconds",
    COUNTER,
    "seconds, rounded",
    ("operation", "conn_id"),
    "a delay for the service's rate limit (429) starts: its length",
)
BYTES_UPLOADED: Final = Metric("bytes_uploaded", COUNTER, "bytes", ("conn_id",), "a file is attached (201): its size")
DELIVERIES: Final = Metric(
    "deliveries",
    COUNTER,
    "deliveries",
    ("outcome", "conn_id"),
    "an attempt has `sent` a transfer, `failed` before that, or failed with the send `in_doubt`; or a wait "
    "finishes: the transfer was `picked_up` by all, or by some (`partial`, with `accept_partial`), `expired` or was "
    "`canceled`",
)
DELIVERIES_IN_DOUBT: Final = Metric(
    "deliveries_in_doubt",
    GAUGE,
    "deliveries",
    ("conn_id",),
    "a task ends or defers: those of the last 30 days that have been in doubt for 15 minutes",
)
MISSING_ROWS: Final = Metric(
    "missing_rows",
    COUNTER,
    "attempts",
    ("conn_id",),
    "an attempt that is not its task's first finds no row of an earlier one in the table of deliveries",
)
DEFERRED_WAITERS: Final = Metric(
    "deferred_waiters",
    GAUGE,
    "waiters",
    ("conn_id", "triggerer"),
    "a deferred waiter starts or finishes, or a poll does: the number in this triggerer; `triggerer` is its host",
)
POLL_DURATION: Final = Metric(
    "poll_duration",
    TIMER,
    "milliseconds",
    ("conn_id",),
    "a triggerer's shared poll finishes: its duration, delays included",
)
FEED_LAG: Final = Metric(
    "feed_lag_seconds",
    GAUGE,
    "seconds",
    ("account",),
    "a page of the event feed is loaded: the age of its newest event while the feed has more, 0 when caught up",
)
ROWS_LOADED: Final = Metric(
    "rows_loaded", COUNTER, "rows", ("table",), "a page is loaded: the number of rows that are new in the warehouse"
)
REJECTED_LINES: Final = Metric(
    "rejected_lines",
    COUNTER,
    "lines",
    ("account",),
    "a page of the event feed is loaded: the number of its invalid lines",
)
DATABASE_FAILURES: Final = Metric(
    "database_failures", COUNTER, "connections", ("sql_conn_id",), "connecting to a warehouse failed"
)

#: All of them, in the order of docs/observability.md.
METRICS: Final = tuple(each for each in tuple(globals().values()) if isinstance(each, Metric))
