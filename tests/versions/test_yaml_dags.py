"""The example of a Dag in YAML, as Airflow 3.4 imports and runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import DagBag
from support.dag_runs import Run
from support.repository import REPOSITORY

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        find_spec("airflow.sdk.importers") is None, reason="before 3.4, Airflow has no importer of YAML"
    ),
]

EXAMPLE = REPOSITORY / "dags/deliver_report.yaml"


def test_the_example_delivers_and_waits(
    run_dag: Callable[..., Run],
    connection: str,
    sandbox: Sandbox,
    recipients_pick_up: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    importer = {"classpath": "airflow.sdk.importers.yaml_importer.YamlDagImporter"}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_IMPORTER_CONFIGS", json.dumps([importer]))
    monkeypatch.setenv("AIRFLOW_VAR_REPORT_FOLDER", str(tmp_path))
    report = tmp_path / "report.csv"
    report.write_bytes(b"a,b\n1,2\n")
    run = run_dag(EXAMPLE.read_text().replace("poke_interval: 5m", "poke_interval: 1s"), suffix="yaml")

    (dag,) = DagBag(str(EXAMPLE)).dags.values()
    tasks = dag.task_dict
    assert (tasks["deliver"].slot_timeout, tasks["wait_for_pickup"].poke_interval) == (timedelta(minutes=30), 300)
    assert set(run.states().values()) == {"success"}
    transfer_id = sandbox.assert_sent_once()
    sandbox.assert_delivered(transfer_id, {"report.csv": report}, "ann@example.com")
