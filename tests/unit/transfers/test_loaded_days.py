"""Which UTC days an ingestion announces, and when."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.transfers import loaded_days as module
from outbound_transfer.transfers.loaded_days import MAX_DAYS, LoadedDaysOperator, loaded_days

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)

needs_partitions = pytest.mark.skipif(not module.HAS_PARTITIONS, reason="Airflow has partitions of assets from 3.2 on")


def test_days_after_the_newest_announced_one_are_announced_and_end_at_midnight_utc() -> None:
    assert loaded_days([], NOON) == loaded_days(["2026-11-21", "2026-11-19", None, "north", ""], NOON) == ["2026-11-22"]
    assert loaded_days(["2026-11-22"], NOON) == loaded_days(["2026-11-25"], NOON) == []
    assert loaded_days(["2026-11-19"], NOON) == ["2026-11-20", "2026-11-21", "2026-11-22"]
    newest = loaded_days(["2020-01-01"], NOON)
    assert (len(newest), newest[-1]) == (MAX_DAYS, "2026-11-22")
    midnight = datetime(2026, 11, 23, tzinfo=UTC)
    assert loaded_days(["2026-11-21"], midnight - timedelta(seconds=1)) == []
    assert loaded_days(["2026-11-21"], midnight.astimezone(timezone(timedelta(hours=-8)))) == ["2026-11-22"]


@given(st.lists(st.datetimes(datetime(2026, 1, 1), datetime(2026, 3, 1)).map(lambda one: one.replace(tzinfo=UTC))))
def test_each_day_from_the_first_run_on_is_announced_once(runs: list[datetime]) -> None:
    announced: list[str] = []
    for started in sorted(runs):
        announced += loaded_days(announced[-MAX_DAYS:], started)
    first = date.fromisoformat(announced[0]) if announced else None
    assert announced == [(first + timedelta(days=at)).isoformat() for at in range(len(announced))]
    if runs:
        assert announced[-1] == (max(runs).date() - timedelta(days=1)).isoformat()


class Events(list[Any]):
    def ascending(self, ascending: bool) -> Events:
        return Events(sorted(self, key=lambda event: event.id, reverse=not ascending))

    def limit(self, limit: int) -> Events:
        return Events(self[:limit])


def run(loaded: Any, *announced: str) -> tuple[list[str], set[str]]:
    """What a task returns, and the partitions that it emits."""
    operator = LoadedDaysOperator(task_id="days", asset=Asset("events", uri="x-test://events"), loaded=loaded)
    (days,) = operator.outlets
    emitted: set[str] = set()
    context = {
        "inlet_events": {days: Events(SimpleNamespace(id=at, partition_key=key) for at, key in enumerate(announced))},
        "outlet_events": {days: SimpleNamespace(add_partitions=emitted.update)},
        "dag_run": SimpleNamespace(start_date=NOON),
    }
    return operator.execute(context), emitted


@needs_partitions
def test_a_run_that_has_reached_the_end_emits_the_days() -> None:
    assert run({"has_more": False}, "2026-11-20") == (["2026-11-21", "2026-11-22"], {"2026-11-21", "2026-11-22"})


@needs_partitions
def test_before_the_end_of_the_feed_and_without_a_new_day_nothing_is_emitted() -> None:
    for loaded in ({"has_more": True}, {}, None, "None"):
        with pytest.raises(AirflowSkipException, match="end of the feed"):
            run(loaded, "2026-11-20")
    with pytest.raises(AirflowSkipException, match="No day has ended"):
        run({"has_more": False}, "2026-11-20", "2026-11-22")


def test_older_versions_of_airflow_are_refused_when_the_dag_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAS_PARTITIONS", False)
    with pytest.raises(InvalidDelivery, match=r"Airflow 3\.2"):
        run({"has_more": False})
