"""A reminder is written with the task that delivers, and knows by itself when it has something to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from airflow.sdk import DAG, TriggerRule, task, task_group

from outbound_transfer.exceptions import InvalidDelivery
from outbound_transfer.operators.draft import SendTransferOperator
from outbound_transfer.operators.redelivery import remind_recipients
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.keyed_tasks import sqlite_connection

DELIVER = {"files": "a.csv", "subject": "Report", "recipients": ["ann@example.com", "bob@example.com"]}

HEAD = """
    from typing import Any
    from airflow.sdk import DAG, task, task_group
    from outbound_transfer.operators.redelivery import remind_recipients
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator

    ANN, BOB = "ann@example.com", "bob@example.com"

    @task
    def collect(transfer: Any) -> None:
        import httpx
        httpx.post(f"{base_url}/_sandbox/transfers/{{transfer['id']}}/pickup", json={{"email": ANN}}).raise_for_status()

    @task
    def fail(*_: Any) -> None:
        raise ValueError

"""

KINDS = {
    "files": 'deliver = DeliverFilesOperator(task_id="deliver", files={files!r}, subject="Report", security="email",'
    " recipients=[ANN, BOB])",
    "query": 'deliver = SqlToOutboundTransferOperator(task_id="deliver", sql_conn_id="rows", subject="Report",'
    ' queries=[{{"sql": "SELECT id FROM orders", "file_name": "orders.csv"}}], security="email",'
    " recipients=[ANN, BOB])",
    "function": """
        @task.deliver_files
        def deliver(name):
            content = {{"name": name, "content": "a,b"}}
            return {{"files": content, "subject": "Report", "recipients": [ANN, BOB], "security": "email"}}
        deliver = deliver("a.csv")
    """,
}


@pytest.fixture
def files(tmp_path, monkeypatch) -> list[str]:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER)")
        database.execute("INSERT INTO orders VALUES (1)")
    monkeypatch.setenv("AIRFLOW_CONN_ROWS", sqlite_connection(tmp_path / "rows.db"))
    (tmp_path / "a.csv").write_text("a,b")
    return [str(tmp_path / "a.csv")]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_task_has_delivered_is_delivered_again(run_dag, connection, sandbox, files, kind) -> None:
    """Whatever kind of task it is, and although the one before the reminder fails."""
    source = HEAD + '    with DAG("reminded", schedule=None):\n        ' + KINDS[kind]
    source += """
        output = getattr(deliver, "output", deliver)
        remind = remind_recipients(deliver, task_id="remind")
        collect(output) >> fail() >> remind
    """
    run = run_dag(source.format(base_url=sandbox.base_url, files=files))

    assert run.states() == {"deliver": "success", "collect": "success", "fail": "failed", "remind": "success"}
    assert run.state == "success"
    first, second = (sandbox.transfer(each) for each in sandbox.sent())
    assert (second["subject"], [each["email"] for each in second["recipients"]]) == (
        "Once more: Report",
        ["bob@example.com"],
    )
    assert [file["name"] for file in second["files"]] == [file["name"] for file in first["files"]]


def test_a_reminder_does_not_send_other_bytes_of_the_same_size(run_dag, connection, sandbox, files, tmp_path) -> None:
    """The names and the sizes of the files are as they were."""
    source = (
        HEAD
        + """
    @task
    def change(*_: Any) -> None:
        import sqlite3
        with sqlite3.connect({database!r}) as database:
            database.execute("UPDATE orders SET id = 2")

    with DAG("reminded", schedule=None):
        """
    )
    source += KINDS["query"]
    source += """
        deliver >> change() >> remind_recipients(deliver, task_id="remind")
    """
    database = str(tmp_path / "rows.db")
    run = run_dag(source.format(base_url=sandbox.base_url, files=files, database=database))

    assert run.states() == {"deliver": "success", "change": "success", "remind": "failed"}
    assert len(sandbox.sent()) == 1


def test_no_delivery_no_reminder_and_the_run_says_so(run_dag, connection, sandbox, files) -> None:
    """A check that fails before the delivery."""
    source = HEAD + '    with DAG("reminded", schedule=None):\n        ' + KINDS["files"]
    source += """
        fail() >> deliver >> remind_recipients(deliver, task_id="remind")
    """
    run = run_dag(source.format(base_url=sandbox.base_url, files=files))

    assert run.states() == {"fail": "failed", "deliver": "upstream_failed", "remind": "failed"}
    assert run.state == "failed"
    sandbox.assert_nothing_sent()


def test_a_reminder_of_a_rehearsal_is_skipped(run_dag, connection, sandbox, files, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__REHEARSE", "True")
    source = HEAD + '    with DAG("reminded", schedule=None):\n        ' + KINDS["files"]
    source += """
        remind_recipients(deliver, task_id="remind")
    """
    run = run_dag(source.format(base_url=sandbox.base_url, files=files))

    assert run.states() == {"deliver": "skipped", "remind": "skipped"}


def test_who_picks_up_a_reminder_is_not_reminded_again(run_dag, connection, sandbox, files) -> None:
    source = HEAD + '    with DAG("reminded", schedule=None):\n        ' + KINDS["files"]
    source += """
        one = remind_recipients(deliver, task_id="one")
        two = remind_recipients(deliver, task_id="two")
        three = remind_recipients(one, task_id="three")
        one >> collect(one.output) >> [two, three]
    """
    run = run_dag(source.format(base_url=sandbox.base_url, files=files))

    assert run.state == "success"
    sent = [[each["email"] for each in sandbox.transfer(each)["recipients"]] for each in sandbox.sent()]
    assert [sorted(each) for each in sent] == [
        *[["ann@example.com", "bob@example.com"]] * 2,
        *[["bob@example.com"]] * 2,
    ]


def test_a_run_that_delivered_nothing_under_its_key_reminds_nobody(run_dag, connection, sandbox, files) -> None:
    kind = KINDS["files"].replace("recipients=", 'delivery_key="k", recipients=')
    source = HEAD + '    with DAG("reminded", schedule=None):\n        ' + kind
    source += """
        remind_recipients(deliver, task_id="remind")
    """
    source = source.format(base_url=sandbox.base_url, files=files)
    assert run_dag(source).states() == {"deliver": "success", "remind": "success"}
    assert run_dag(source).states() == {"deliver": "success", "remind": "skipped"}
    other = run_dag(source.replace('"Report"', '"Other"'))  # which the key refuses, and no skip hides
    assert (other.states(), other.state) == ({"deliver": "failed", "remind": "failed"}, "failed")
    assert len(sandbox.sent()) == 2


def test_who_picks_up_what_was_redelivered_is_not_reminded_of_either(run_dag, connection, sandbox, files) -> None:
    source = HEAD + '    with DAG("reminded", schedule=None):\n        ' + KINDS["files"]
    source += """
        from outbound_transfer.operators.redelivery import RedeliverFilesOperator
        again = RedeliverFilesOperator(task_id="again", files={files!r}, transfer_id=deliver.output, security="email")
        again >> collect(deliver.output) >> remind_recipients(again, task_id="remind")
    """
    run = run_dag(source.format(base_url=sandbox.base_url, files=files))

    assert run.state == "success"
    assert [each["email"] for each in sandbox.transfer(sandbox.sent()[-1])["recipients"]] == ["bob@example.com"]


@pytest.mark.parametrize("left", ["bob", "nobody"])
def test_a_function_that_finds_nothing_any_more_is_no_reason_to_remind_nobody(
    run_dag, connection, sandbox, tmp_path, left
) -> None:
    source = (
        HEAD
        + """
    @task.deliver_files(subject="Report", recipients={people!r}, security="email")
    def deliver():
        import pathlib
        from support.airflow_names import AirflowSkipException
        if pathlib.Path({flag!r}).exists():
            raise AirflowSkipException("nothing today")
        pathlib.Path({flag!r}).touch()
        return {{"name": "a.csv", "content": "a,b"}}

    with DAG("reminded", schedule=None):
        deliver = deliver()
        collect(deliver) >> remind_recipients(deliver, task_id="remind")
    """
    )
    people = ["ann@example.com", "bob@example.com"][: 2 if left == "bob" else 1]
    run = run_dag(source.format(base_url=sandbox.base_url, people=people, flag=str(tmp_path / "flag")))
    assert run.states()["remind"] == ("failed" if left == "bob" else "skipped")
    sandbox.assert_sent_once()


def test_a_reminder_whose_files_are_gone_fails(run_dag, connection, sandbox, files, tmp_path) -> None:
    kind = KINDS["files"].replace("files={files!r}", 'files={folder!r} + "/*.csv", on_empty="skip"')
    source = HEAD + '    with DAG("reminded", schedule=None):\n        ' + kind
    source += """
        @task
        def remove(*_: Any) -> None:
            import pathlib
            pathlib.Path({folder!r}, "a.csv").unlink()

        remove(deliver.output) >> remind_recipients(deliver, task_id="remind")
    """
    run = run_dag(source.format(base_url=sandbox.base_url, folder=str(tmp_path)))
    assert run.states() == {"deliver": "success", "remove": "success", "remind": "failed"}
    sandbox.assert_sent_once()


def test_in_a_mapped_task_group_each_reminds_of_its_own(run_dag, connection, sandbox, files) -> None:
    source = (
        HEAD
        + """
    with DAG("reminded", schedule=None):
        @task_group
        def of_one(email):
            deliver = DeliverFilesOperator(task_id="deliver", files={files!r}, subject="Report", recipients=email)
            deliver >> fail() >> remind_recipients(deliver, task_id="remind")

        of_one.expand(email=[ANN, BOB])
    """
    )
    run = run_dag(source.format(base_url=sandbox.base_url, files=files))

    assert {state for name, state in run.states().items() if "fail" not in name} == {"success"}
    received = sorted(sandbox.transfer(each)["recipients"][0]["email"] for each in sandbox.sent())
    assert received == ["ann@example.com", "ann@example.com", "bob@example.com", "bob@example.com"]


def test_two_reminders_of_one_delivery_are_no_twins(run_dag, connection, sandbox, files) -> None:
    """In a mapped task group, as in a run that was cleared, tasks look for others that have sent the same."""
    source = (
        HEAD
        + """
    with DAG("reminded", schedule=None):
        @task_group
        def of_one(email):
            deliver = DeliverFilesOperator(task_id="deliver", files={files!r}, subject="Report", recipients=email)
            reminders = [remind_recipients(deliver, task_id=name, subject="Report") for name in ("one", "two")]
            deliver >> reminders[0] >> reminders[1]

        of_one.expand(email=[ANN, BOB])
    """
    )
    run = run_dag(source.format(base_url=sandbox.base_url, files=files))

    assert set(run.states().values()) == {"success"}
    received = sorted(sandbox.transfer(each)["recipients"][0]["email"] for each in sandbox.sent())
    assert received == ["ann@example.com"] * 3 + ["bob@example.com"] * 3


@pytest.mark.parametrize("rule", sorted({rule.value for rule in TriggerRule} - {"all_done"}))
def test_a_reminder_that_airflow_may_skip_is_refused_at_parsing(rule) -> None:
    with DAG("dag", schedule=None):
        deliver = DeliverFilesOperator(task_id="deliver", **DELIVER)
        with pytest.raises(InvalidDelivery, match=f"remind: trigger_rule '{rule}' .* Leave it out"):
            remind_recipients(deliver, task_id="remind", trigger_rule=rule)
        assert remind_recipients(deliver, trigger_rule="all_done").trigger_rule == "all_done"


def test_a_reminder_of_what_delivers_nothing_or_is_mapped_is_refused_at_parsing() -> None:
    with DAG("dag", schedule=None):
        send = SendTransferOperator(task_id="send", transfer_id="t")
        mapped = DeliverFilesOperator.partial(task_id="mapped", **DELIVER).expand(message=["1", "2"])
        deliver = DeliverFilesOperator(task_id="deliver", **DELIVER)
        for wrong in (send, mapped, mapped.output, "deliver"):
            with pytest.raises(InvalidDelivery, match="is no task that delivers, or it is mapped"):
                remind_recipients(wrong, task_id="wrong")

        @task_group
        def of_one(number: int) -> None:
            @task
            def use(number: int) -> None: ...

            use(number) >> remind_recipients(deliver, task_id="remind")

        with pytest.raises(InvalidDelivery, match="must be in the same mapped task group"):
            of_one.expand(number=[1, 2])


def test_a_reminder_takes_what_is_delivered_and_not_how() -> None:
    with DAG("dag", schedule=None):
        deliver = DeliverFilesOperator(
            task_id="deliver",
            outbound_transfer_conn_id="finance",
            message="Hello",
            security="question",
            security_question="?",
            security_answer="!",
            archive="all.zip",
            checksums="SHA256SUMS",
            wait=True,
            **DELIVER,
        )
        reminder = remind_recipients(deliver, message="Please", retries=2)

    # Files and people are those of the delivery as the reminder renders it.
    assert (reminder.outbound_transfer_conn_id, reminder.security) == ("finance", "question")
    assert (reminder.subject, reminder.message, reminder.retries) == (None, "Please", 2)
    assert (reminder.wait, reminder.trigger_rule) == (False, "all_done")
    assert reminder.upstream_task_ids == {"deliver"}
