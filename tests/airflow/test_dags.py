"""The DAGs of ``dags/`` in a real Airflow."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_deliver_files_sends_each_delivery_once(
    run_dag, connection, sandbox, recipients_pick_up, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("OUTBOUND_TRANSFER_POKE_INTERVAL", "1")
    (tmp_path / "a.txt").write_text("for ann")
    (tmp_path / "b.txt").write_text("for bob")
    deliveries = [
        {"files": [str(tmp_path / "a.txt")], "subject": "For Ann", "recipients": ["ann@example.com"]},
        {"files": [str(tmp_path / "*.txt")], "subject": "123", "recipients": [{"email": "bob@example.com"}]},
    ]
    run = run_dag((REPOSITORY / "dags/deliver_files.py").read_text(), conf={"deliveries": deliveries})

    assert run.state == "success"
    assert {run.states()[f"delivery.wait_for_pickup[{index}]"] for index in (0, 1)} == {"success"}
    final = [run.xcom("delivery.wait_for_pickup", map_index=index) for index in (0, 1)]
    assert [(transfer["subject"], transfer["status"]) for transfer in final] == [
        ("For Ann", "complete"),
        ("123", "complete"),
    ]
    assert [row["kind"] for row in sandbox.ledger()].count("billed") == 2
