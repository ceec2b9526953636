"""Days of the event feed as partitions of an asset, in a real Airflow: each is announced once, and delivered once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from outbound_transfer.assets.outbound_transfer import days_asset, table_asset
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, running_stack
from support.repository import REPOSITORY
from support.timeouts import eventually

pytestmark = pytest.mark.e2e

DAYS = days_asset(table_asset("events", sql_conn_id="outbound_transfer_warehouse"))


class DaysStack(ManySandboxesStack):
    """With the Dags of a daily statement alone."""

    def start(self) -> None:
        (self.folder / "dags").mkdir()
        shutil.copy(REPOSITORY / "dags" / "daily_statement.py", self.folder / "dags")
        self.dags = self.folder / "dags"
        super().start()
        self.sandboxes[0].patch_account(feed_interval_seconds=0)

    def connections(self) -> dict[str, str]:
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandboxes[0].airflow_connection(),
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE": json.dumps(
                {"conn_type": "sqlite", "host": str(self.warehouse)}
            ),
        }

    def ingest(self) -> str:
        """Return how the task of the days has ended, in a new run of the ingestion."""
        run_id = self.airflow.trigger("ingest_events_by_day", {})
        path = f"dags/ingest_events_by_day/dagRuns/{run_id}"
        eventually(lambda: self.airflow.call("GET", path)["state"] in ("success", "failed"), interval=0.5)
        tasks = self.airflow.tasks("ingest_events_by_day", run_id)
        return next(str(row["state"]) for row in tasks if row["task_id"] == "loaded_days")

    def statements(self) -> list[str]:
        """Return the subjects of what was sent."""
        sandbox = self.sandboxes[0]
        return sorted(sandbox.transfer(each)["subject"] for each in sandbox.sent())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaysStack]:
    with running_stack(tmp_path_factory.mktemp("days") / "stack", Reporter(), 1, kind=DaysStack) as stack:
        stack.wait_for_dags(stack.airflow, "ingest_events_by_day", "daily_statement")
        yield stack


def test_each_day_is_announced_once_and_its_statement_is_sent_once(stack: DaysStack) -> None:
    today = datetime.now(UTC).date()
    days = [(today - timedelta(days=back)).isoformat() for back in (3, 2, 1)]
    (asset,) = stack.airflow.call("GET", "assets", name_pattern=DAYS.name)["assets"]
    stack.airflow.call("POST", "assets/events", {"asset_id": asset["id"], "partition_key": days[0]})
    stack.airflow.unpause("ingest_events_by_day")
    first, second = stack.ingest(), stack.ingest()
    stack.airflow.unpause("daily_statement")  # it reads a table of the ingestion

    # The schedule of the ingestion may have begun a run of its own.
    assert (first, second) in (("success", "skipped"), ("skipped", "skipped"))
    eventually(lambda: len(stack.statements()) == 3, interval=0.5)
    assert stack.statements() == [f"Events of {day}" for day in days]
    events = stack.airflow.call("GET", "assets/events", asset_id=asset["id"])["asset_events"]
    assert sorted(event["partition_key"] for event in events) == days
    runs = stack.airflow.runs("daily_statement")
    print(f"runs of the consumer: {[(run['partition_key'], run['state']) for run in runs]}")
    assert sorted(run["partition_key"] for run in runs) == days
