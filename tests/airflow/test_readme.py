"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_dag_to_copy_delivers(run_dag, connection, sandbox, recipients_pick_up, tmp_path) -> None:
    source = EXAMPLES[0]
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7")
    files = 'files=["/data/reports/{{ ds }}/*.pdf", "s3://finance/summary.xlsx"]'
    assert files in source

    source = source.replace(files, f"files=[{str(tmp_path / '*.pdf')!r}]")
    run = run_dag(source.replace('on_expired="fail",', 'on_expired="fail", poke_interval=1,'))

    assert run.states() == dict.fromkeys(["deliver", "wait_for_pickup", "discard_draft"], "success")
    assert all(recipient["picked_up_at"] for recipient in run.xcom("wait_for_pickup")["recipients"])


def test_the_dag_that_runs_when_transfers_end_is_one(tmp_path, airflow_database) -> None:
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "ends.py").write_text(EXAMPLES[1])
    bag = DagBag(str(tmp_path))
    assert not bag.import_errors
    (asset,) = bag.dags["expired"].timetable.asset_condition.objects
    (watcher,) = asset.watchers
    assert watcher.trigger.outcomes == ["expired"]


def test_every_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets
