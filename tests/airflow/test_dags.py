"""The DAGs of ``dags/`` in a real Airflow."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_deliver_files_sends_each_delivery_once(run_dag, connection, sandbox, recipients_pick_up, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("for ann")
    (tmp_path / "b.txt").write_text("for bob")
    deliveries = [
        {"files": [str(tmp_path / "a.txt")], "subject": "For Ann", "recipients": ["ann@example.com"]},
        {"files": [str(tmp_path / "*.txt")], "subject": "123", "recipients": [{"email": "bob@example.com"}]},
    ]
    run = run_dag((REPOSITORY / "dags/deliver_files.py").read_text(), conf={"deliveries": deliveries})

    print(run.states())
    assert run.state == "success"
