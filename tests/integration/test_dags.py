"""The DAGs of ``dags/`` in a real Airflow."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from support.provider import Upload, build_new_transfer
from support.repository import REPOSITORY

DELIVER_FILES = (REPOSITORY / "dags/deliver_files.py").read_text()


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
    run = run_dag(DELIVER_FILES, conf={"deliveries": deliveries})
    assert run.state == "success"
    assert {run.states()[f"delivery.wait_for_pickup[{index}]"] for index in (0, 1)} == {"success"}
    final = [run.xcom("delivery.wait_for_pickup", map_index=index) for index in (0, 1)]
    assert [(transfer["subject"], transfer["status"]) for transfer in final] == [
        ("For Ann", "complete"),
        ("123", "complete"),
    ]
    assert [row["kind"] for row in sandbox.ledger()].count("billed") == 2


def test_redeliver_files_delivers_to_those_who_are_left(run_dag, connection, sandbox, hook, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("for both")
    first = hook.create_transfer(
        build_new_transfer(subject="Quarter", recipients=["ann@example.com", "bob@example.com"])
    )
    hook.attach_file(first.id, Upload("a.txt", 8, lambda: iter([b"for both"])))
    hook.send_transfer(first.id)
    sandbox.pickup(first.id, "ann@example.com")
    conf = {"transfer_id": first.id, "files": [str(tmp_path / "*.txt")]}
    source = (REPOSITORY / "dags/redeliver_files.py").read_text()
    run = run_dag(source, conf=conf)
    assert run.states() == {"deliver": "success", "discard_draft": "success"}
    second = run.xcom("deliver")
    assert (second["subject"], second["not_picked_up"]) == ("Once more: Quarter", ["bob@example.com"])
    sandbox.pickup(first.id, "bob@example.com")
    assert run_dag(source, conf=conf).states()["deliver"] == "skipped"
    assert sandbox.sent() == [first.id, second["id"]]


def test_deliver_files_delivers_what_its_form_says(
    run_dag, connection, sandbox, recipients_pick_up, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("OUTBOUND_TRANSFER_POKE_INTERVAL", "1")
    (tmp_path / "a.txt").write_text("for both")
    # As the form has them: a line with a blank at its end, and one without anything.
    form = {
        "files": [f"{tmp_path}/*.txt ", ""],
        "recipients": ["ann@example.com", " bob@example.com"],
        "subject": "Report",
        "message": "Two lines\nof text",
        "security": "email",
    }
    run = run_dag(DELIVER_FILES, conf=form)
    assert run.state == "success"
    transfer_id = sandbox.assert_sent_once()
    sandbox.assert_delivered(transfer_id, {"a.txt": b"for both"}, "ann@example.com", "bob@example.com")
    transfer = sandbox.transfer(transfer_id)
    assert (transfer["subject"], transfer["message"]) == ("Report", "Two lines\nof text")


ONE = {"files": ["/a"], "subject": "S", "recipients": ["ann@example.com"]}


@pytest.mark.parametrize(
    ("conf", "is_valid"),
    [
        ({"deliveries": [ONE]}, True),
        (ONE, True),
        (ONE | {"security": "email_code"}, True),
        (ONE | {"security": "sms"}, False),
        (ONE | {"security": ""}, False),
        ({"deliveries": [ONE | {"security": ""}]}, False),
        ({"deliveries": [ONE | {"security": None}]}, True),
        (ONE | {"message": "x" * 2001}, False),
        (ONE | {"recipients": ["a@example.com"] * 251}, False),
        ({"deliveries": [ONE | {"colour": "blue"}]}, False),
    ],
)
def test_the_form_of_deliver_files_takes_one_or_many(tmp_path, airflow_database, conf: dict, is_valid: bool) -> None:
    from airflow.exceptions import ParamValidationError

    from support.airflow_names import DagBag

    (tmp_path / "under_test.py").write_text(DELIVER_FILES)
    (dag,) = DagBag(str(tmp_path)).dags.values()
    with nullcontext() if is_valid else pytest.raises(ParamValidationError):
        dag.params.update(conf)  # validates each
        assert dag.params.validate() == dag.params.dump() | conf


@pytest.mark.parametrize("conf", [{}, ONE | {"deliveries": [ONE]}], ids=["neither", "both"])
def test_deliver_files_sends_nothing_if_its_form_is_empty_or_says_two_things(
    run_dag, connection, sandbox, conf
) -> None:
    run = run_dag(DELIVER_FILES, conf=conf)
    assert run.states()["deliveries"] == "failed"
    sandbox.assert_nothing_sent()


REMIND = (REPOSITORY / "dags/remind_recipients.py").read_text()


@pytest.mark.parametrize("picked_up", [0, 1, 2])
def test_remind_recipients_reminds_those_who_are_left(
    run_dag, connection, sandbox, tmp_path, monkeypatch, picked_up
) -> None:
    monkeypatch.setenv("OUTBOUND_TRANSFER_POKE_INTERVAL", "1")
    monkeypatch.setenv("OUTBOUND_TRANSFER_TIMEOUT", "1")
    recipients = ["ann@example.com", "bob@example.com"]
    (tmp_path / "a.pdf").write_text("for both")

    # They pick up as soon as it is sent.
    picking = REMIND.replace("    wait >> remind", f"    deliver >> picked_up({picked_up}) >> wait >> remind").replace(
        "with DAG(",
        f"""
@task
def picked_up(count: int, ti: Any = None) -> None:
    import httpx

    transfer_id = ti.xcom_pull("deliver", key="transfer_id")
    for email in {recipients!r}[:count]:
        url = f"{sandbox.base_url}/_sandbox/transfers/{{transfer_id}}/pickup"
        httpx.post(url, json={{"email": email}}).raise_for_status()


with DAG(""",
        1,
    )
    run = run_dag(picking, conf={"files": str(tmp_path / "*.pdf"), "recipients": recipients})

    states = run.states()
    assert states["wait_for_pickup"] == ("success" if picked_up == 2 else "failed")
    assert states["remind"] == ("skipped" if picked_up == 2 else "success")
    assert states["report"] == run.state == "success"
    assert run.xcom("report") == recipients[picked_up:]
    assert len(sandbox.sent()) == (1 if picked_up == 2 else 2)
    if picked_up < 2:
        second = sandbox.sent()[1]
        assert sandbox.transfer(second)["subject"].startswith("Once more: Reports of ")
        sandbox.assert_delivered(second, {"a.pdf": b"for both"}, *recipients[picked_up:])


APPROVED = (REPOSITORY / "dags/deliver_with_approval.py").read_text()


@pytest.mark.parametrize("choice", ["Approve", "Reject", ""])
def test_deliver_with_approval_sends_what_is_approved(
    run_dag, connection, sandbox, hook, answer_requests, tmp_path, choice
) -> None:
    (tmp_path / "a.pdf").write_text("for both")
    if choice:
        answer_requests(choice)
    source = APPROVED.replace("timedelta(days=3)", "timedelta(seconds=2)").replace("retries=3", "retries=0")

    run = run_dag(source, conf={"files": str(tmp_path / "*.pdf")})

    states = run.states()
    if choice == "Approve":
        assert {*states.values()} == {"success"}
        assert run.xcom("send")["approval"] == {"by": "test", "at": run.xcom("approve")["at"]}
        sandbox.assert_delivered(
            sandbox.assert_sent_once(), {"a.pdf": b"for both"}, "ann@example.com", "bob@example.com"
        )
        assert run.xcom("discard") is False
        return
    ended = {"approve": "skipped", "send": "skipped"} if choice else {"approve": "failed", "send": "upstream_failed"}
    assert states == {"deliver": "success", "discard": "success", **ended}
    assert run.xcom("discard") is True
    sandbox.assert_nothing_sent()
    assert hook.get_conn().find_transfer(run.xcom("deliver")["id"]) is None
