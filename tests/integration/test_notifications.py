"""Notifications of transfers, by a real mail server and a real webhook; in a worker, and in a triggerer."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.xcom import XCom
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.exceptions import SourceMissing
from outbound_transfer.notifications.base import MAX_ADDRESSES, build_notice
from outbound_transfer.notifications.slack import TransferSlackNotifier, to_mrkdwn
from outbound_transfer.notifications.smtp import TransferSmtpNotifier, to_html
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support import transfers
from support.airflow_names import AirflowFailException, mask_secret
from support.provider import TransferOutcome
from support.raw_server import answer, serving, with_body
from support.tasks import SimulatedClock, task_instance

ANN, BOB = "ann@example.com", "bob@example.com"
HOSTILE = "<b>&</b> <!channel> <http://evil.example|Click> {{ var.value.secret }}\r\nBcc: eve@example.com"


@pytest.fixture
def webhook(monkeypatch) -> Iterator[list[dict[str, Any]]]:
    bodies: list[dict[str, Any]] = []

    def handle(stream: socket.socket, request: bytes) -> None:
        bodies.append(json.loads(with_body(stream, request).partition(b"\r\n\r\n")[2]))
        stream.sendall(answer(b"ok"))

    with serving(handle) as server:
        value = {"conn_type": "slackwebhook", "password": server.url(path="/services/T/B/token")}
        monkeypatch.setenv("AIRFLOW_CONN_SLACK_DEFAULT", json.dumps(value))
        yield bodies


def failed(**outcome: Any) -> Any:
    """The context of a callback after a failed wait."""
    error = AirflowFailException("It is expired")
    known = {"status": "expired", "subject": "Report", "picked_up": [BOB], "not_picked_up": [ANN], **outcome}
    vars(error)["outcome"] = TransferOutcome(transfer_id="tr_1", reason=str(error), **known)
    ti = SimpleNamespace(dag_id="board", run_id="monday", task_id="wait")
    task = SimpleNamespace(outbound_transfer_conn_id="outbound_transfer_default")
    return {"ti": ti, "exception": error, "task": task}


async def notify_async(notifier: Any, context: Any) -> None:
    """As a triggerer runs the callback of a deadline."""
    notifier.context = context
    await notifier


WAYS = pytest.mark.parametrize(
    "send",
    [lambda notifier, context: notifier(context), lambda *given: asyncio.run(notify_async(*given))],
    ids=["worker", "triggerer"],
)


@WAYS
def test_a_failed_wait_is_notified_by_email_and_in_slack(mail, webhook, connection, sandbox, send) -> None:
    send(TransferSmtpNotifier(to="operations@example.com"), failed())
    send(TransferSlackNotifier(title="Board"), failed())
    url = f"{sandbox.base_url}/transfers/tr_1"
    told = [
        "Transfer tr_1 is expired; not picked up by 1 recipient: ann@example.com",
        "Task: board / monday / wait",
        "Reason: It is expired",
    ]
    (message,), (body,) = mail.parsed(), webhook
    assert (message["Subject"], message["To"]) == ("Not picked up by 1 of 2: Report", "operations@example.com")
    shown = re.sub("<.*?>", "", message.get_content()).strip().splitlines()
    assert shown == ["Not picked up by 1 of 2: Report", *told, "Open the transfer"]
    assert f'href="{url}"' in message.get_content()
    text = "\n".join(["*Board: Report*", *told, f"<{url}|Open the transfer>"])
    assert body == {"text": text, "unfurl_links": False, "unfurl_media": False}
    assert sandbox.requests() == [], "the error says it all"


@WAYS
def test_a_hostile_subject_is_text(mail, webhook, connection, monkeypatch, send) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_SECRET", "hunter2")
    context = failed(subject=HOSTILE, not_picked_up=[f"{HOSTILE}@example.com"])
    for notifier in (TransferSmtpNotifier(to="operations@example.com"), TransferSlackNotifier()):
        for _ in range(2):
            send(notifier, context)
    for message in mail.parsed():
        assert "<b>&</b> <!channel>" in message["Subject"]
        assert "&lt;b&gt;&amp;&lt;/b&gt;" in message.get_content()
    assert all("\nBcc:" not in raw for raw in mail.messages)
    for body in webhook:
        assert "&lt;b&gt;&amp;&lt;/b&gt; &lt;!channel&gt; &lt;http://evil.example|Click&gt;" in body["text"]
    assert len(mail.messages) == len(webhook) == 2
    assert "hunter2" not in "".join(mail.messages) + repr(webhook)


DEADLINE = {
    "dag_run": {"dag_id": "board", "dag_run_id": "monday", "state": "running"},
    "deadline": {"id": "1", "deadline_time": "2026-01-31 12:00:00+00:00"},
}


@pytest.fixture
def sent(connection, sandbox) -> str:
    (sent,) = transfers.send(sandbox, 1, ANN, BOB, subject="Quarter")
    sandbox.pickup(sent, BOB)
    return sent


@pytest.fixture
def pushed(monkeypatch, sent) -> dict[str, Any]:
    """The XComs of the run ``monday`` of the Dag ``board``."""
    of_send = {"id": sent, "status": "pending"}
    pushed = {("deliver", "transfer_id"): sent, ("create", "return_value"): sent, ("send", "return_value"): of_send}

    def get_one(*, key: str, dag_id: str, run_id: str, task_id: str) -> Any:
        assert (dag_id, run_id) == ("board", "monday")
        return pushed.get((task_id, key))

    monkeypatch.setattr(XCom, "get_one", get_one)
    return pushed


@WAYS
@pytest.mark.parametrize("task_id", ["deliver", "create", "send"])
def test_a_deadline_is_notified_with_what_the_service_says(mail, connection, pushed, sent, send, task_id) -> None:
    send(TransferSmtpNotifier(to="operations@example.com", task_id=task_id), dict(DEADLINE))
    (message,) = mail.parsed()
    assert message["Subject"] == "Not picked up by 1 of 2: Quarter"
    text = message.get_content()
    assert f"Transfer {sent} is partial; not picked up by 1 recipient: ann@example.com<" in text
    assert "Reason: The run has not finished by its deadline, 2026-01-31 12:00:00+00:00<" in text
    assert f"Task: board / monday / {task_id}<" in text


@WAYS
@pytest.mark.parametrize("trouble", ["no transfer", "no xcom", "no access", "no connection"])
def test_a_notification_goes_out_in_any_case(mail, connection, pushed, sandbox, monkeypatch, send, trouble) -> None:
    if trouble == "no transfer":
        pushed.clear()
    elif trouble == "no xcom":
        monkeypatch.setattr(XCom, "get_one", lambda **_: 1 / 0)
    elif trouble == "no access":
        sandbox.revoke_key(sandbox.transfer_api_key)
    conn_id = "nowhere" if trouble == "no connection" else None
    notifier = TransferSmtpNotifier(to="operations@example.com", task_id="deliver", outbound_transfer_conn_id=conn_id)
    send(notifier, dict(DEADLINE))
    (message,) = mail.parsed()
    is_known = trouble in ("no access", "no connection")
    assert message["Subject"] == ("Pickup not known" if is_known else "No transfer yet")
    assert "The run has not finished by its deadline" in message.get_content()
    assert ("it is not known who has picked it up" in message.get_content()) is is_known


@WAYS
def test_an_error_without_a_transfer_is_notified(mail, connection, monkeypatch, sandbox, tmp_path, send) -> None:
    monkeypatch.setattr(XCom, "get_one", lambda **_: None)
    arguments = {"files": f"{tmp_path}/none.csv", "subject": "Report", "recipients": [ANN]}
    with pytest.raises(SourceMissing) as raised:
        task_instance(DeliverFilesOperator, SimulatedClock(sandbox), **arguments).run()
    ti = SimpleNamespace(dag_id="board", run_id="monday", task_id="deliver")
    send(TransferSmtpNotifier(to="operations@example.com"), {"ti": ti, "exception": raised.value})
    mask_secret("correct-horse-battery")
    of_another_task = ValueError("no such\npassword: correct-horse-battery")
    send(TransferSmtpNotifier(to=[ANN, BOB], title="Failed"), {"ti": ti, "exception": of_another_task})
    before_its_draft, other = mail.parsed()
    assert before_its_draft["Subject"] == "Failed without a transfer"
    assert "none.csv does not exist" in before_its_draft.get_content()
    assert other["Subject"] == "Failed"
    assert "Reason: no such password: ***<" in other.get_content()


texts = st.text(max_size=40) | st.sampled_from([HOSTILE, "<", "&lt;", "|", "*", "\u202e", "\ud800", "{{ 1 }}"])
addresses = st.none() | st.lists(texts, max_size=MAX_ADDRESSES + 2)
outcomes = st.builds(TransferOutcome, texts, texts, st.none() | texts, st.none() | texts, addresses, addresses)


def tags_of(html: str) -> list[tuple[str, Any]]:
    tags: list[tuple[str, Any]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda *tag: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(html)
    parser.close()
    return tags


@given(st.none() | outcomes, texts, texts, st.none() | texts)
def test_no_text_becomes_markup(outcome, dag_id, reason, title) -> None:
    url = "https://example.com/transfers/%3C"
    notice = build_notice(outcome, dag_id, title=title, reason=reason, url=url)
    lines = [notice.title, *notice.lines]
    assert all(line == " ".join(line.splitlines()) for line in lines), "each is one line"
    assert all(len(line) < 10_000 for line in lines)
    slack = to_mrkdwn(notice)
    assert slack.count("<") == slack.count(">") == bool(notice.url)
    assert len(slack.splitlines()) == len(lines) + bool(notice.url)
    tags = tags_of(to_html(notice))
    assert [tag for tag, attrs in tags if attrs] == ["a"] * bool(notice.url)
    assert {tag for tag, _ in tags} <= {"h3", "p", "a"}
    to_html(notice).encode()
    slack.encode()


CALLBACKS = """
    from airflow.sdk import DAG
    from outbound_transfer.exceptions import outcome_of
    from outbound_transfer.notifications.slack import TransferSlackNotifier
    from outbound_transfer.notifications.smtp import TransferSmtpNotifier
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.sensors.transfer import TransferSensor
    from pathlib import Path

    def note(context):
        outcome = outcome_of(context["exception"])
        Path({file!r}).write_text(f"{{outcome.transfer_id}} {{outcome.not_picked_up}}")

    mail = TransferSmtpNotifier(to="operations@example.com")
    with DAG("callbacks", schedule=None):
        deliver = DeliverFilesOperator(
            task_id="deliver", subject="Report", files={file!r}, recipients="ann@example.com", deferrable={deferrable}
        )
        TransferSensor(
            task_id="wait", transfer_id=deliver.output, timeout=2, poke_interval=1,
            deferrable={deferrable}, on_failure_callback=[mail, TransferSlackNotifier(), note],
        )
        DeliverFilesOperator(
            task_id="deliver_and_wait", subject="Other", files={file!r}, recipients=["ann@example.com"],
            wait=True, timeout=2, poke_interval=1, deferrable={deferrable}, on_failure_callback=mail,
        )
"""


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_callback_of_airflow_notifies(run_dag, connection, sandbox, mail, webhook, tmp_path, deferrable) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a")
    run = run_dag(CALLBACKS.format(file=str(file), deferrable=deferrable))
    assert run.states() == {"deliver": "success", "wait": "failed", "deliver_and_wait": "failed"}
    outcome = run.xcom("wait", key="outcome")
    assert (outcome["status"], outcome["not_picked_up"]) == ("pending", [ANN])
    assert file.read_text() == f"{outcome['transfer_id']} {[ANN]}"
    subjects = sorted(message["Subject"] for message in mail.parsed())
    assert subjects == ["Not picked up by 1 of 1: Other", "Not picked up by 1 of 1: Report"]
    (body,) = webhook
    assert f"Transfer {outcome['transfer_id']} is pending; not picked up by 1 recipient: {ANN}" in body["text"]
    assert run.xcom("deliver_and_wait", key="outcome")["subject"] == "Other"
