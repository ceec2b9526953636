"""Every metric of the provider, by name; all go through Airflow's own ``stats``, to wherever that is set to send them.

docs/metrics.md is made of :data:`METRICS`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

log = logging.getLogger(__name__)

PREFIX: Final = "outbound_transfer."

#: What no StatsD takes in a name, of which tags are a part there.
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_.-]")


class Kind(Enum):
    """As StatsD calls them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"


@dataclass(frozen=True)
class Metric:
    """One metric.

    :ivar unit: of its value; what is timed reaches StatsD in milliseconds.
    :ivar tags: their names; values are cleaned of what a name may not hold.
    :ivar when: when it is emitted, and by whom.
    """

    suffix: str
    kind: Kind
    unit: str
    tags: tuple[str, ...]
    when: str

    @property
    def name(self) -> str:
        return PREFIX + self.suffix

    def emit(self, value: float = 1, **tags: object) -> None:
        """Emit it. Nothing ever fails because a metric could not be emitted.

        :param value: how many more of a counter, what a gauge shows, seconds of a timer.
        """
        try:
            self._emit(value, {name: _ILLEGAL.sub("_", str(tags[name])) for name in self.tags})
        except Exception as error:
            log.debug("The metric %s was not emitted: %s", self.name, error)

    def _emit(self, value: float, tags: Mapping[str, Any]) -> None:
        from airflow.sdk.observability import stats

        if self.kind is Kind.COUNTER:
            stats.incr(self.name, round(value), tags=dict(tags))
        elif self.kind is Kind.GAUGE:
            stats.gauge(self.name, value, tags=dict(tags))
        else:
            stats.timing(self.name, value * 1_000, tags=dict(tags))


CALLS: Final = Metric(
    "calls",
    Kind.COUNTER,
    "calls",
    ("operation", "status", "conn_id"),
    "each try of a call ends; status is HTTP's, `none` where no answer came",
)
CALL_DURATION: Final = Metric(
    "call_duration", Kind.TIMER, "milliseconds", ("operation", "status", "conn_id"), "with each of these"
)
RETRIES: Final = Metric(
    "retries",
    Kind.COUNTER,
    "calls",
    ("operation", "conn_id"),
    "a call failed and will be repeated, after a wait or a deferral",
)
RATE_LIMIT_WAIT: Final = Metric(
    "rate_limit_wait_seconds",
    Kind.COUNTER,
    "seconds, rounded",
    ("operation", "conn_id"),
    "a wait for the service's rate limit (429) begins, as long as it will take",
)
BYTES_UPLOADED: Final = Metric(
    "bytes_uploaded", Kind.COUNTER, "bytes", ("conn_id",), "a file is attached (201), its size"
)
WAITS: Final = Metric(
    "waits",
    Kind.GAUGE,
    "waits",
    ("conn_id", "triggerer"),
    "a deferred wait begins or ends: how many this triggerer has; triggerer is its host",
)
POLL_DURATION: Final = Metric(
    "poll_duration",
    Kind.TIMER,
    "milliseconds",
    ("conn_id",),
    "a look of a triggerer's shared poll ends, waits included",
)
FEED_LAG: Final = Metric(
    "feed_lag_seconds",
    Kind.GAUGE,
    "seconds",
    ("feed",),
    "a page of the event feed is landed: the age of its newest event while the feed has more, 0 when caught up",
)
ROWS_LANDED: Final = Metric(
    "rows_landed", Kind.COUNTER, "rows", ("table",), "a page is landed: rows that were not in the warehouse before"
)
REJECTED_LINES: Final = Metric(
    "rejected_lines",
    Kind.COUNTER,
    "lines",
    ("feed",),
    "a page of the event feed is landed: its lines that are no events",
)

METRICS: Final = (
    CALLS,
    CALL_DURATION,
    RETRIES,
    RATE_LIMIT_WAIT,
    BYTES_UPLOADED,
    WAITS,
    POLL_DURATION,
    FEED_LAG,
    ROWS_LANDED,
    REJECTED_LINES,
)


def table() -> str:
    """The metrics as docs/metrics.md has them."""
    rows = (
        f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {', '.join(f'`{tag}`' for tag in metric.tags)} "
        f"| {metric.when} |"
        for metric in METRICS
    )
    return "\n".join(("| name | kind | unit | tags | emitted when |", "|---|---|---|---|---|", *rows))
