"""A delivery over its tries and clears: what is asked, concluded and remembered (docs/guarantees.md)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from airflow.sdk import DAG

from outbound_transfer.exceptions import DeliveriesUnavailable, TransferLimitReached
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support import memory
from support.airflow_names import AirflowFailException
from support.calls import ATTACH, GET, SEND, ProcessCrashed, after, before, dying_after, intercepted
from support.deliveries import BOTH_MODES, DELIVERY
from support.keyed_tasks import sqlite_connection
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance, SimulatedClock, again


def calls(sandbox, start: int = 0) -> list[str]:
    """The calls that the service has received: ``POST send``, ``GET transfer``, …"""
    return [f"{call['method']} {_kind(call['path'])}" for call in sandbox.requests()[start:]]


def _kind(path: str) -> str:
    parts = path.split("/")[3:]
    return parts[1] if len(parts) > 1 else ("transfers", "transfer")[len(parts)]


def test_a_delivery_uses_a_call_for_each_file_and_two_more(deliver, sandbox) -> None:
    assert deliver().run()["status"] == "pending"
    assert calls(sandbox) == ["POST transfers", "POST files", "POST files", "POST send"]
    assert len(sandbox.sent()) == 1
    assert "2 and one for each file" in (REPOSITORY / "docs/tuning.md").read_text()


def test_a_clear_after_the_send_reads_and_pushes_the_id_and_the_link_again(deliver, sandbox) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    wanted = {"transfer_id": sent, "_link_TransferLink": f"{sandbox.base_url}/transfers/{sent}"}
    assert wanted.items() <= ti.xcoms.items()
    made = len(sandbox.requests())
    assert again(ti)["id"] == sent
    assert wanted.items() <= ti.xcoms.items()
    assert sandbox.sent() == [sent]
    assert {call.partition(" ")[0] for call in calls(sandbox, made)} == {"GET"}


@BOTH_MODES
def test_a_full_account_keeps_the_draft_until_a_slot_frees(deliver, sandbox, deferrable) -> None:
    blocker = deliver().run()["id"]
    sandbox.patch_account(outstanding_transfer_limit=1)
    ti = deliver(deferrable=deferrable)
    sleep, waits = ti.time.sleep, []

    def sleep_then_free(seconds: float) -> None:
        sleep(seconds)
        waits.append(seconds)
        if len(waits) == 3:
            sandbox.cancel(blocker)

    ti.time.sleep = sleep_then_free
    assert ti.run()["status"] == "pending"
    assert len(waits) >= 3
    assert calls(sandbox).count("POST transfers") == 2, "no draft but the blocker's and this one"


@BOTH_MODES
def test_waiting_for_a_slot_stops_at_slot_timeout(deliver, sandbox, deferrable) -> None:
    sandbox.patch_account(outstanding_transfer_limit=0)
    ti = deliver(deferrable=deferrable, slot_timeout=600)
    with pytest.raises(TransferLimitReached):
        ti.run()
    assert 480 <= ti.time.now <= 600


def test_attaching_returns_each_file_with_its_digest(task, files) -> None:
    draft = task(CreateTransferOperator, **DELIVERY).run()
    attach = task(AttachFilesOperator, transfer_id=draft, files=files)
    attached = attach.run()
    assert [file.keys() for file in attached] == [{"id", "name", "size", "sha256"}] * 2
    assert {file["name"]: file["sha256"] for file in attached} == {
        Path(file).name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files
    }
    assert again(attach) == attached
    assert task(SendTransferOperator, transfer_id=draft).run()["files"] == attached
    assert again(attach) == attached, "of a sent transfer, too"


@pytest.mark.parametrize("nothing", [None, "", "None"])
def test_discarding_nothing_succeeds(task, sandbox, nothing) -> None:
    assert task(DiscardTransferOperator, transfer_id=nothing).run() is True
    assert calls(sandbox) == []


def test_a_link_that_cannot_be_made_fails_no_delivery(deliver, monkeypatch) -> None:
    no_backend = mock.Mock(side_effect=RuntimeError("no backend"))
    monkeypatch.setattr("outbound_transfer.links.transfer.TransferLink", no_backend)
    assert deliver().run()["status"] == "pending"


def test_the_table_of_deliveries_has_the_security_option(deliver, task, files, monkeypatch, tmp_path) -> None:
    memory.keep_deliveries_in(monkeypatch, sqlite_connection(tmp_path / "deliveries.db"))
    for security in (None, "email", "login"):
        deliver(subject=str(security), security=security).run()
    deliver(subject="draft", security="none", send=False).run()
    draft = task(CreateTransferOperator, "create", security="email", **DELIVERY).run()
    task(AttachFilesOperator, "attach", transfer_id=draft, files=files).run()
    assert task(SendTransferOperator, "send", transfer_id=draft).run()["security"] == "email"
    documented = (REPOSITORY / "include/sql/README.md").read_text()
    query = re.search("(?s)SELECT security, .* GROUP BY security", documented)
    with closing(sqlite3.connect(tmp_path / "deliveries.db")) as database:
        assert database.execute(query[0]).fetchall() == [("", 0, 1), ("email", 0, 2), ("login", 0, 1)]


def test_another_run_or_task_sends_its_own_transfer(deliver, sandbox) -> None:
    one, next_run = deliver(), deliver(task_id="task")
    other_task = deliver(recipients=["bob@example.com", "ann@example.com"])
    next_run.run_id, other_task.upstream, other_task.clear_number = "next", {"one": one}, 1
    assert [ti.run()["id"] for ti in (one, next_run, other_task)] == sandbox.sent()


# What is found under an id.
def test_a_wrong_transfer_is_not_a_success_after_a_clear(deliver, sandbox) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    other = json.dumps(sandbox.transfer(sent)["files"]).replace("b.csv", "c.csv")
    sandbox.plan_faults({"kind": "field_value", "method": "GET", "path": f"*/{sent}", "field": "files", "json": other})
    with pytest.raises(AirflowFailException, match=sent):
        again(ti)


OTHER_PEOPLE = '[{"email": "eve@example.com", "name": "Eve", "picked_up_at": null}]'
TWO_OF_A_NAME = '[{"id": "fl_other", "name": "a.csv", "size": 9}, {"id": "fl_1", "name": "a.csv", "size": 1}]'


@pytest.mark.parametrize("is_one_task", [True, False], ids=["one task", "three tasks"])
@pytest.mark.parametrize(
    ("field", "value", "difference"),
    [
        ("subject", '"Other"', "with other recipients or another subject"),
        ("id", '"tr_other"', "the service's response shows tr_other"),
        ("files", "[]", r"it holds \[\], and \['a.csv'\] was meant"),
        ("files", '[{"id": "fl_other", "name": "other.csv", "size": 9}]', r"it holds \['other.csv'\]"),
        ("files", TWO_OF_A_NAME, r"it holds \['a.csv', 'a.csv'\]"),
        ("recipients", OTHER_PEOPLE, "with other recipients"),
    ],
)
def test_a_response_to_the_send_that_differs_is_an_error(
    task, deliver, sandbox, files, is_one_task, field, value, difference
) -> None:
    send = deliver(files=files[:1])
    if not is_one_task:
        (create := task(CreateTransferOperator, "create", **DELIVERY)).run()
        send = task(SendTransferOperator, transfer_id=create.result)
        send.upstream = {"create": create, "attach": attached(task, create, "attach", files[:1])}
    sandbox.plan_faults({"kind": "field_value", "field": field, "json": value, "method": "POST", "path": "*/send"})
    with pytest.raises(Exception, match=f"was sent, but .*{difference}"):
        send.run()


def attached(task, create: FakeTaskInstance, name: str, files: list[str]) -> FakeTaskInstance:
    ti = task(AttachFilesOperator, name, transfer_id=create.result, files=files)
    ti.upstream = {"create": create}
    ti.run()
    return ti


@pytest.fixture
def in_steps(task, files) -> dict[str, FakeTaskInstance]:
    """A draft to which two tasks have attached a file each, and a send that comes after them."""
    (create := task(CreateTransferOperator, "create", **DELIVERY)).run()
    one, two = (attached(task, create, name, [file]) for name, file in zip(("one", "two"), files, strict=True))
    return {"create": create, "one": one, "two": two}


@pytest.mark.parametrize("state", ["success", "upstream_failed", "running", "skipped", "removed"])
def test_no_draft_is_sent_before_each_task_that_is_to_attach_has_attached_to_it(
    task, in_steps, sandbox, files, state
) -> None:
    """Create was cleared alone, so the draft is another: one task has attached its file to that, two has not."""
    again(in_steps["create"])
    in_steps["one"] = attached(task, in_steps["create"], "one", files[:1])
    in_steps["two"].final_state = state
    send = task(SendTransferOperator, "send", transfer_id=in_steps["create"].result)
    send.upstream = in_steps
    if state in ("skipped", "removed"):
        assert [file["name"] for file in send.run()["files"]] == ["a.csv"]
        return
    with pytest.raises(Exception, match="two"):
        send.run()
    sandbox.assert_nothing_sent()


def test_a_task_that_airflow_gives_up_while_it_reads_the_draft_sends_nothing(task, make_draft, sandbox) -> None:
    send = task(SendTransferOperator, transfer_id=make_draft())
    with before(GET, lambda: setattr(send, "state", "failed")), pytest.raises(Exception, match="given up this attempt"):
        send.run()
    sandbox.assert_nothing_sent()


def yield_each(files: list[str]) -> Any:
    yield from files


SAME = {
    "touched": lambda files: os.utime(files[0], (1, 1)) or files,
    "written again": lambda files: [shutil.move(shutil.copy(file, f"{file}.new"), file) for file in files],
    "a pattern": lambda files: f"{Path(files[0]).parent}/*.csv",
    "a set": set,
    "an iterator": iter,
    "a generator": yield_each,
}


@pytest.mark.parametrize("give", SAME.values(), ids=SAME)
def test_the_same_bytes_under_the_same_names_are_the_same_input(deliver, files, give) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    assert again(ti, files=give(files))["id"] == sent


@pytest.mark.parametrize("archive", [None, "all.zip"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_file_that_is_gone_hides_no_other_that_has_changed(deliver, sandbox, files, archive, position) -> None:
    ti = deliver(files=[*files], archive=archive)
    sent = ti.run()["id"]
    Path(files[position]).unlink()
    Path(files[1 - position]).write_bytes(b"corrected")
    with pytest.raises(Exception, match=sent):
        again(ti)
    assert sandbox.sent() == [sent]


def test_an_attaching_task_that_is_cleared_after_the_send_compares_what_is_left(task, files, sandbox) -> None:
    draft = task(CreateTransferOperator, "create", **DELIVERY).run()
    attach = task(AttachFilesOperator, "attach", transfer_id=draft, files=[*files])
    attach.run()
    task(SendTransferOperator, "send", transfer_id=draft).run()
    Path(files[0]).unlink()
    Path(files[1]).write_bytes(b"corrected")
    with pytest.raises(AirflowFailException, match=r"different files: b.*; \S+a\.csv does not exist: [^/]+[^.]\. No"):
        again(attach)


def lose(*_: Any) -> Any:
    raise httpx.ReadError("reset")


@pytest.mark.parametrize("how", ["a clear", "a clear of the send", "another run", "a lost response"])
def test_the_log_says_who_has_sent(deliver, task, make_draft, caplog, monkeypatch, tmp_path, how) -> None:
    """What was sent before is not said to be sent now."""
    caplog.set_level("INFO")
    other = deliver
    if how == "another run":
        memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "deliveries.db"))
        other = partial(deliver, delivery_key="k")
    ti = other(task_id="first")
    if how == "a clear of the send":
        ti = task(SendTransferOperator, "first", transfer_id=make_draft())
    log = {"_cached_logger": logging.getLogger("task")}
    with after(SEND, lose) if how == "a lost response" else nullcontext():
        first = again(ti, **log)["id"]
    lines = re.findall("Sent transfer .*: pending|Done|sent before", caplog.text)
    assert lines == [f"Sent transfer {first}: pending", "Done"]

    caplog.clear()
    again(other(task_id="other") if how == "another run" else ti, **log)
    maker = "task" if how == "a clear of the send" else "first"
    told = f"Nothing is sent: transfer {first} (pending), created by task {maker} of run run of dag, was already sent"
    assert re.findall("Nothing .*|Sent transfer|Done", caplog.text) == [told]


def test_the_log_says_why_a_draft_is_made_again(deliver, caplog) -> None:
    caplog.set_level("INFO")
    ti = deliver()
    with dying_after(ATTACH), pytest.raises(ProcessCrashed):
        ti.run()
    again(ti)
    assert re.search(r"Creating a new draft, as an earlier attempt did not send draft \S+", caplog.text)


NOTHING = "{{ nothing }}"
QUESTION = {"security": "question", "security_question": "Which?", "security_answer": "Blue"}


@pytest.fixture(params=[True, False], ids=["native", "text"])
def rendered(request, connection, sandbox) -> Callable[..., FakeTaskInstance]:
    """Make a task whose templates have been rendered, as Airflow does before it runs."""

    def make(**arguments: Any) -> FakeTaskInstance:
        with DAG("templates", schedule=None, render_template_as_native_obj=request.param):
            operator = DeliverFilesOperator(task_id="task", **{"files": "a.csv", **DELIVERY, **arguments})
        operator.render_template_fields({"nothing": None})
        return FakeTaskInstance(lambda: operator, SimulatedClock(sandbox))

    return make


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subject": NOTHING}, "subject must not be empty"),
        *(({**QUESTION, missing: NOTHING}, "security") for missing in QUESTION),
        # The file's own name may be an internal one.
        ({"files": {"path": "customer_4711_draft.csv", "name": NOTHING}}, "the name of a file must not be empty"),
        ({"files": {"path": "customer_4711_draft.csv", "name": "{{ '' }}"}}, "the name of a file must not be empty"),
    ],
    ids=str,
)
def test_an_argument_that_renders_to_nothing_is_refused(rendered, sandbox, arguments, message) -> None:
    with pytest.raises(AirflowFailException, match=message):
        rendered(**arguments).run()
    assert sandbox.requests() == []


def test_nothing_is_not_sent_as_a_word(rendered, sandbox, files) -> None:
    sent = rendered(files=files, message=NOTHING).run()["id"]
    assert sandbox.transfer(sent)["message"] is None


@pytest.mark.parametrize("answer", ["12.50", "1_234", "1e5", "'quoted'"])
def test_an_answer_is_sent_as_it_is_written(rendered, sandbox, files, answer) -> None:
    bodies: list[bytes] = []
    with intercepted(lambda request, make: (bodies.append(request.read()), make())[1]):
        rendered(files=files, **QUESTION | {"security_answer": answer}).run()
    assert json.loads(bodies[0])["security_answer"] == answer


@pytest.mark.parametrize("wrong", [None, "", "None", ".", 7, {"subject": "Report"}])
def test_a_send_of_no_id_is_refused_and_forgotten(task, make_draft, wrong) -> None:
    send = task(SendTransferOperator, transfer_id=wrong, _airflow_from_mapped=True)
    with pytest.raises(AirflowFailException, match=" id "):
        send.run()
    draft = make_draft()
    assert again(send, transfer_id=draft)["id"] == draft


@pytest.mark.parametrize("where", ["single_machine", "several_machines"])
def test_one_machine_needs_no_setting_and_others_a_database(
    deliver, sandbox, tmp_path, monkeypatch, request, where
) -> None:
    request.getfixturevalue(where)
    if where == "several_machines":
        memory.keep_keys_in(monkeypatch, sqlite_connection(tmp_path / "states.db"))
    ti = memory.kept_in_a_database(deliver())
    sent = ti.run()["id"]
    assert again(ti)["id"] == sent == sandbox.assert_sent_once()


@pytest.mark.usefixtures("several_machines")
@pytest.mark.parametrize("delivery_key", [None, "k"])
def test_without_a_database_a_task_on_several_machines_creates_nothing(task, deliver, sandbox, delivery_key) -> None:
    for ti in (deliver(retries=3, delivery_key=delivery_key), task(CreateTransferOperator, retries=3, **DELIVERY)):
        with pytest.raises(AirflowFailException, match=r"set \w+_conn_id in the section"):
            memory.kept_in_a_database(ti).run()
        assert ti.try_number == 1
    assert sandbox.requests() == []


@pytest.mark.parametrize("delivery_key", [None, "k"])
@pytest.mark.parametrize("tries", [0, 1], ids=["first try", "retry"])
def test_a_database_that_is_down_is_named_before_anything_is_created(
    deliver, sandbox, monkeypatch, delivery_key, tries
) -> None:
    down = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": "secret", "schema": "d"}
    memory.keep_keys_in(monkeypatch, json.dumps(down))
    ti = memory.kept_in_a_database(deliver(delivery_key=delivery_key))
    ti.try_number = tries
    with pytest.raises(DeliveriesUnavailable, match="Nothing more is done.*connection 'states'"):
        ti.run()
    assert sandbox.requests() == []
