"""The operator that announces each UTC day of the event feed as a partition, once it is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset, BaseOperator

from outbound_transfer.airflow_compat.names import HAS_PARTITIONS, AirflowSkipException
from outbound_transfer.assets.outbound_transfer import days_asset
from outbound_transfer.client.errors import InvalidDelivery

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Maximum number of days that one run announces: the newest, if a Dag was paused for longer.
MAX_DAYS: Final = 90

_DAY: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


class LoadedDaysOperator(BaseOperator):
    """Emit a partition for each UTC day that an ingestion has read to its end, once. Airflow 3.2 and newer.

    A day is read to its end by the first run that starts after it and reaches the end of the feed, whether the day had
    events or not. Airflow knows which days were announced, as their asset events are this task's inlets: a run that
    fails neither loses a day nor announces it twice. The first run announces the day before it; without a new day, the
    task is skipped.

    :param asset: what the ingestion loads, such as ``table_asset("events", sql_conn_id=…)``; schedule a Dag on its
        :func:`~outbound_transfer.assets.outbound_transfer.days_asset`.
    :param loaded: the ingestion's return value: its ``output``.
    :return: the days, such as ``["2026-11-22"]``.
    """

    template_fields: Sequence[str] = ("loaded",)

    def __init__(self, *, asset: Asset, loaded: Any, **kwargs: Any) -> None:
        if not HAS_PARTITIONS:
            raise InvalidDelivery("LoadedDaysOperator needs Airflow 3.2 or newer, which has asset partitions")
        self.days = days_asset(asset)
        super().__init__(**{**kwargs, "inlets": [self.days], "outlets": [self.days]})
        self.loaded = loaded

    def execute(self, context: Context) -> list[str]:
        if not isinstance(self.loaded, Mapping) or self.loaded.get("has_more") is not False:
            raise AirflowSkipException("The ingestion has not reached the end of the feed: the next run looks again")
        events = context["inlet_events"][self.days].ascending(False).limit(MAX_DAYS)
        started = context["dag_run"].start_date
        assert started is not None, "the run has started"
        days = loaded_days((event.partition_key for event in events), started)
        if not days:
            raise AirflowSkipException("No day has ended since the last one that was announced")
        context["outlet_events"][self.days].add_partitions(days)
        return days


def loaded_days(announced: Iterable[str | None], now: datetime) -> list[str]:
    """Return the UTC days that ended before ``now`` and come after the announced ones, the oldest first.

    :param announced: partition keys, in any order; keys that are not days are ignored.
    """
    yesterday = now.astimezone(UTC).date() - timedelta(days=1)
    days = [(yesterday - timedelta(days=back)).isoformat() for back in reversed(range(MAX_DAYS))]
    newest = max((key for key in announced if key and _DAY.fullmatch(key)), default=days[-2])
    return [day for day in days if day > newest]
