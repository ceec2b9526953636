"""A reminder is written with the task that delivers, and knows by itself when it has something to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from textwrap import dedent, indent

import pytest
from airflow.sdk import DAG, TriggerRule, task, task_group

from outbound_transfer.exceptions import InvalidDelivery
from outbound_transfer.operators.draft import SendTransferOperator
from outbound_transfer.operators.redelivery import remind_recipients
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.dag_runs import Run
from support.keyed_tasks import sqlite_connection

ANN, BOB = "ann@example.com", "bob@example.com"
DELIVER = {"files": "a.csv", "subject": "Report", "recipients": [ANN, BOB]}

HEAD = """
from typing import Any
from airflow.sdk import DAG, task, task_group
from outbound_transfer.operators.redelivery import RedeliverFilesOperator, remind_recipients
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

@task
def change(*_: Any) -> None:
    import pathlib, sqlite3
    pathlib.Path({file!r}).unlink()
    with sqlite3.connect({database!r}) as database:
        database.execute("UPDATE orders SET id = 2")

with DAG("reminded", schedule=None):
"""

OF_FILES = """deliver = DeliverFilesOperator(
    task_id="deliver", files={file!r}, subject="Report", security="email", recipients=[ANN, BOB]
)"""
OF_A_QUERY = """deliver = SqlToOutboundTransferOperator(
    task_id="deliver", sql_conn_id="rows", queries=[{{"sql": "SELECT id FROM orders", "file_name": "orders.csv"}}],
    subject="Report", security="email", recipients=[ANN, BOB],
)"""
OF_A_FUNCTION = """@task.deliver_files
def deliver(name):
    content = {{"name": name, "content": "a,b"}}
    return {{"files": content, "subject": "Report", "recipients": [ANN, BOB], "security": "email"}}
deliver = deliver("a.csv")"""
REMIND = 'remind = remind_recipients(deliver, task_id="remind")'


@pytest.fixture
def run(run_dag, connection, sandbox, tmp_path, monkeypatch) -> Callable[..., Run]:
    """Run a Dag of such lines, and what they are about."""
    file, database = tmp_path / "a.csv", tmp_path / "rows.db"
    with closing(sqlite3.connect(database)) as connected, connected:
        connected.execute("CREATE TABLE orders (id INTEGER)")
        connected.execute("INSERT INTO orders VALUES (1)")
    monkeypatch.setenv("AIRFLOW_CONN_ROWS", sqlite_connection(database))
    file.write_text("a,b")

    def run(*lines: str) -> Run:
        values = {"base_url": sandbox.base_url, "file": str(file), "folder": str(tmp_path), "database": str(database)}
        result: Run = run_dag((HEAD + indent("\n".join(lines), "    ")).format(**values))
        return result

    return run


def received(sandbox: Sandbox) -> list[list[str]]:
    return [sorted(each["email"] for each in sandbox.transfer(sent)["recipients"]) for sent in sandbox.sent()]


OF_A_RESULT = f"""@task
def name():
    return "a.csv"
{OF_A_FUNCTION.replace('deliver("a.csv")', "deliver(name())")}"""


@pytest.mark.parametrize(
    "kind", [OF_FILES, OF_A_QUERY, OF_A_FUNCTION, OF_A_RESULT], ids=["files", "query", "function", "result"]
)
def test_a_reminder_delivers_the_same_files_again(run, sandbox, kind) -> None:
    """Whatever kind of task it is, and although the one before the reminder fails."""
    done = run(kind, REMIND, 'collect(getattr(deliver, "output", deliver)) >> fail() >> remind')
    ends = {"deliver": "success", "collect": "success", "fail": "failed", "remind": "success"}
    assert done.states() == ends | ({"name": "success"} if kind is OF_A_RESULT else {})
    assert done.state == "success"
    assert received(sandbox) == [[ANN, BOB], [BOB]]
    first, second = (sandbox.transfer(each) for each in sandbox.sent())
    assert second["subject"] == "Once more: Report"
    assert [file["name"] for file in second["files"]] == [file["name"] for file in first["files"]]


@pytest.mark.parametrize(
    "kind", [OF_A_QUERY, OF_FILES.replace("{file!r}", '{folder!r} + "/*.csv", on_empty="skip"')],
    ids=["other bytes under the same names and of the same size", "files that are gone"],
)  # fmt: skip
def test_a_reminder_does_not_send_what_was_not_delivered(run, sandbox, kind) -> None:
    done = run(kind, REMIND, "change(deliver.output) >> remind")
    assert done.states() == {"deliver": "success", "change": "success", "remind": "failed"}
    sandbox.assert_sent_once()


def test_no_delivery_no_reminder_and_the_run_says_so(run, sandbox) -> None:
    """A check that fails before the delivery."""
    done = run(OF_FILES, REMIND, "fail() >> deliver")
    assert done.states() == {"fail": "failed", "deliver": "upstream_failed", "remind": "failed"}
    assert done.state == "failed"
    sandbox.assert_nothing_sent()


def test_a_reminder_of_a_rehearsal_is_skipped(run, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__REHEARSE", "True")
    assert run(OF_FILES, REMIND).states() == {"deliver": "skipped", "remind": "skipped"}


def test_a_recipient_who_picks_up_a_reminder_is_not_reminded_again(run, sandbox) -> None:
    lines = [f'{name} = remind_recipients({of}, task_id="{name}")' for name, of in OF_REMINDERS.items()]
    assert run(OF_FILES, *lines, "one >> collect(one.output) >> [two, three]").state == "success"
    assert received(sandbox) == [[ANN, BOB], [ANN, BOB], [BOB], [BOB]]


OF_REMINDERS = {"one": "deliver", "two": "deliver", "three": "one"}


def test_a_run_that_delivered_nothing_under_its_key_reminds_nobody(run, sandbox) -> None:
    keyed = OF_FILES.replace("recipients=", 'delivery_key="k", recipients=')
    assert run(keyed, REMIND).states() == {"deliver": "success", "remind": "success"}
    assert run(keyed, REMIND).states() == {"deliver": "success", "remind": "skipped"}
    other = run(keyed.replace('"Report"', '"Other"'), REMIND)  # which the key refuses, and no skip hides
    assert (other.states(), other.state) == ({"deliver": "failed", "remind": "failed"}, "failed")
    assert len(sandbox.sent()) == 2


def test_a_recipient_who_picks_up_the_first_transfer_is_not_reminded_of_its_redelivery(run, sandbox) -> None:
    done = run(
        OF_FILES,
        'again = RedeliverFilesOperator(task_id="again", files={file!r}, transfer_id=deliver.output, security="email")',
        'again >> collect(deliver.output) >> remind_recipients(again, task_id="remind")',
    )
    assert done.state == "success"
    assert received(sandbox)[-1] == [BOB]


@pytest.mark.parametrize(("people", "state"), [("[ANN, BOB]", "failed"), ("[ANN]", "skipped")])
def test_a_reminder_fails_if_its_function_finds_nothing_for_those_still_waiting(run, sandbox, people, state) -> None:
    function = f"""
        @task.deliver_files(subject="Report", recipients={people}, security="email")
        def deliver():
            import pathlib
            from support.airflow_names import AirflowSkipException
            flag = pathlib.Path({{folder!r}}, "flag")
            if flag.exists():
                raise AirflowSkipException("nothing today")
            flag.touch()
            return {{{{"name": "a.csv", "content": "a,b"}}}}

        deliver = deliver()
    """
    assert run(dedent(function), REMIND, "collect(deliver) >> remind").states()["remind"] == state
    sandbox.assert_sent_once()


def test_each_index_of_a_mapped_task_group_sends_its_own_reminders(run, sandbox) -> None:
    """Tasks of such a group, like those of a cleared run, look for others that have sent the same."""
    group = """
        @task_group
        def of_one(email):
            deliver = DeliverFilesOperator(task_id="deliver", files={file!r}, subject="Report", recipients=email)
            reminders = [remind_recipients(deliver, task_id=name, subject="Report") for name in ("one", "two")]
            deliver >> fail() >> reminders[0] >> reminders[1]

        of_one.expand(email=[ANN, BOB])
    """
    states = run(dedent(group)).states()
    assert {state for name, state in states.items() if "fail" not in name} == {"success"}
    assert sorted(received(sandbox)) == [[ANN]] * 3 + [[BOB]] * 3


def test_a_reminder_that_airflow_may_skip_is_refused_at_parsing() -> None:
    with DAG("dag", schedule=None):
        deliver = DeliverFilesOperator(task_id="deliver", **DELIVER)
        for rule in {rule.value for rule in TriggerRule} - {"all_done"}:
            with pytest.raises(InvalidDelivery, match=f"remind: trigger_rule '{rule}' .* Leave it out"):
                remind_recipients(deliver, task_id="remind", trigger_rule=rule)
        assert remind_recipients(deliver, trigger_rule="all_done").trigger_rule == "all_done"


def test_a_reminder_of_what_delivers_nothing_or_is_mapped_is_refused_at_parsing() -> None:
    with DAG("dag", schedule=None):
        send = SendTransferOperator(task_id="send", transfer_id="t")
        mapped = DeliverFilesOperator.partial(task_id="mapped", **DELIVER).expand(message=["1", "2"])
        deliver = DeliverFilesOperator(task_id="deliver", **DELIVER)
        for wrong in (send, mapped, mapped.output, "deliver"):
            with pytest.raises(InvalidDelivery, match="does not deliver, or it is mapped"):
                remind_recipients(wrong, task_id="wrong")

        @task_group
        def of_one(number: int) -> None:
            @task
            def use(number: int) -> None: ...

            use(number) >> remind_recipients(deliver, task_id="remind")

        with pytest.raises(InvalidDelivery, match="must be in the same mapped task group"):
            of_one.expand(number=[1, 2])


def test_a_reminder_takes_what_is_delivered_and_not_how() -> None:
    secret = {"security": "question", "security_question": "?", "security_answer": "!"}
    how = {"message": "Hello", "archive": "all.zip", "checksums": "SHA256SUMS", "wait": True}
    with DAG("dag", schedule=None):
        deliver = DeliverFilesOperator(
            task_id="deliver", outbound_transfer_conn_id="finance", **secret, **how, **DELIVER
        )
        reminder = remind_recipients(deliver, message="Please", retries=2)
    # Files and people are those of the delivery as the reminder renders it.
    assert (reminder.outbound_transfer_conn_id, reminder.security) == ("finance", "question")
    assert (reminder.subject, reminder.message, reminder.retries) == (None, "Please", 2)
    assert (reminder.wait, reminder.trigger_rule) == (False, "all_done")
    assert reminder.upstream_task_ids == {"deliver"}
