"""A Dag file that did not change makes no second Dag version, whatever its tasks are given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.models.dag_version import DagVersion
from airflow.utils.session import create_session

from support.repository import TESTS
from support.timeouts import TEST_TIMEOUT

pytestmark = pytest.mark.e2e

DAG = """
from airflow.sdk import DAG
from support.provider import ContentWriter
from outbound_transfer.notifications.slack import TransferSlackNotifier
from outbound_transfer.operators.approval import ApproveTransferOperator
from outbound_transfer.operators.recipients import RecipientsFromSql
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator


def write(stream):
    stream.write(b"a,b")


PEOPLE = RecipientsFromSql(sql="SELECT email FROM people", conn_id="sales", parameters={"b": 1, "a": 2})
NOTIFIER = TransferSlackNotifier(title="late")

with DAG("versioned", schedule=None, on_failure_callback=NOTIFIER):
    deliver = DeliverFilesOperator(
        task_id="deliver",
        files=[{"name": "a.csv", "content": ContentWriter(write)}, {"name": "b.csv", "content": lambda: b"a,b"}],
        subject="Report",
        recipients=PEOPLE,
        send=False,
        on_failure_callback=NOTIFIER,
    )
    ApproveTransferOperator(task_id="approve", transfer_id=deliver.output, notifiers=NOTIFIER)
    TransferSensor(task_id="wait", transfer_id=deliver.output)
    SqlToOutboundTransferOperator(
        task_id="query", sql_conn_id="sales", sql="SELECT 1", file_name="a.csv", subject="Report", recipients=PEOPLE
    )
"""


@pytest.fixture
def dag_file(airflow_database: None) -> Iterator[Path]:
    file = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "versioned.py"
    yield file
    file.unlink()


def airflow(*arguments: str) -> None:
    # By default, Airflow ignores a change within 30 seconds.
    env = os.environ | {"AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0", "PYTHONPATH": str(TESTS)}
    subprocess.run([sys.executable, "-m", "airflow", *arguments], env=env, check=True, timeout=TEST_TIMEOUT)


def versions() -> int:
    with create_session() as session:
        return session.query(DagVersion).filter_by(dag_id="versioned").count()


def test_a_file_that_did_not_change_makes_one_version(dag_file: Path) -> None:
    found = []
    for source in (DAG, DAG, DAG.replace("a.csv", "c.csv")):
        dag_file.write_text(source)
        airflow("dags", "reserialize")
        found.append(versions())
        airflow("dags", "trigger", "versioned")  # Airflow overwrites a version that no run has used
    assert found == [1, 1, 2]
