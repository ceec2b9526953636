"""Patterns that match nothing, where ``on_empty`` says that this may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.exceptions import SourceMissing
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.deliveries import DELIVERY
from support.tasks import FakeTaskInstance, again


@pytest.fixture
def deliver(task, tmp_path) -> Callable[..., FakeTaskInstance]:
    def make(*names: str, operator: type = DeliverFilesOperator, **arguments: Any) -> FakeTaskInstance:
        files = [str(tmp_path / name) for name in names]
        return task(operator, on_empty="skip", files=files, **DELIVERY, **arguments)

    return make


def test_no_match_skips_the_task_before_any_call(deliver, sandbox) -> None:
    with pytest.raises(AirflowSkipException, match="No pattern in files matches a file: nothing is delivered"):
        deliver("*.csv", "2026-01-31/*.csv").run()
    assert sandbox.requests() == []


def test_a_pattern_without_a_match_is_left_out_and_what_is_none_must_be_there(deliver, sandbox, tmp_path) -> None:
    (file := tmp_path / "a.csv").write_text("a")
    with pytest.raises(SourceMissing, match=r"b\.csv"):
        deliver("*.csv", "*.pdf", "b.csv").run()
    assert sandbox.requests() == []
    task = deliver("*.csv", "*.pdf")
    transfer = task.run()
    assert [each["name"] for each in transfer["files"]] == ["a.csv"]
    file.unlink()
    assert again(task)["id"] == transfer["id"], "what has sent is not skipped"


def test_results_of_queries_are_delivered_without_the_files(deliver, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CRM", "sqlite:///%3Amemory%3A")
    query = {"sql_conn_id": "crm", "sql": "SELECT 1 AS n", "file_name": "n.csv"}
    transfer = deliver("*.pdf", operator=SqlToOutboundTransferOperator, **query).run()
    assert [file["name"] for file in transfer["files"]] == ["n.csv"]


def test_a_task_that_attaches_nothing_is_skipped_and_leaves_nothing(task, sandbox, tmp_path) -> None:
    create = task(CreateTransferOperator, "create", **DELIVERY)
    draft = create.run()

    def attach(name: str) -> FakeTaskInstance:
        given = {"transfer_id": draft, "files": str(tmp_path / name), "checksums": f"{name[0]}.sums"}
        return task(AttachFilesOperator, name[0], on_empty="skip", **given)

    (file := tmp_path / "a.csv").write_text("a")
    (tmp_path / "b.csv").write_text("b")
    empty = attach("a*.csv")
    empty.run()
    file.unlink()
    with pytest.raises(AirflowSkipException, match="No pattern in files matches a file"):
        again(empty)
    empty.final_state = "skipped"
    other = attach("b.csv")
    other.run()
    assert [each["name"] for each in sandbox.transfer(draft)["files"]] == ["b.sums", "b.csv"]

    # What was sent without a file of this task is no reason to fail it, but one that is there now was not sent.
    send = task(SendTransferOperator, transfer_id=draft)
    send.upstream = {"create": create, "a": empty, "b": other}
    send.run()
    with pytest.raises(AirflowSkipException):
        again(empty)
    file.write_text("a")
    with pytest.raises(AirflowFailException, match=draft):
        again(empty)
