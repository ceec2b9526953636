"""A delivery over its tries: what a retry, a clear and a long wait do (docs/guarantees.md#sent-at-most-once)."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from outbound_transfer.exceptions import SourceChanged, TransferLimitReached
from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support import memory
from support.airflow_names import AirflowFailException
from support.calls import during_upload
from support.keyed_tasks import sqlite_connection
from support.tasks import again

DELIVERY = {"subject": "Report", "recipients": ["ann@example.com"]}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return [str(path) for path in paths]


def calls(sandbox, start: int = 0) -> list[str]:
    """The calls that the service has received: ``POST send``, ``GET transfer``, …"""
    return [f"{call['method']} {_kind(call['path'])}" for call in sandbox.requests()[start:]]


def _kind(path: str) -> str:
    parts = path.split("/")[3:]
    return parts[1] if len(parts) > 1 else ("transfers", "transfer")[len(parts)]


def stored(sandbox, transfer_id: str) -> dict[str, str]:
    """SHA-256 by name of what a transfer holds."""
    files = sandbox.transfer(transfer_id)["files"]
    return {file["name"]: sandbox.stored_file(transfer_id, file["id"])["sha256"] for file in files}


def on_disk(files: list[str]) -> dict[str, str]:
    return {Path(file).name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}


def test_a_delivery_uses_a_call_for_each_file_and_two_more(task, sandbox, files) -> None:
    result = task(DeliverFilesOperator, files=files, **DELIVERY).run()

    assert result["status"] == "pending"
    assert calls(sandbox) == ["POST transfers", "POST files", "POST files", "POST files", "POST send"]
    assert len(sandbox.sent()) == 1


def test_a_clear_after_the_send_returns_the_same_transfer(task, sandbox, files) -> None:
    ti = task(DeliverFilesOperator, files=files, **DELIVERY)
    first = ti.run()

    assert again(ti)["id"] == ti.xcoms["transfer_id"] == first["id"], "also for the tasks that read the XCom"
    assert len(sandbox.sent()) == 1
    assert {call.partition(" ")[0] for call in calls(sandbox)[5:]} == {"GET"}


def test_a_clear_after_the_send_pushes_the_id_and_the_link_again(task, sandbox, files) -> None:
    ti = task(DeliverFilesOperator, files=files, **DELIVERY)
    transfer_id = ti.run()["id"]
    wanted = {
        "transfer_id": transfer_id,
        "_link_TransferLink": f"{sandbox.base_url}/transfers/{transfer_id}",
    }
    assert wanted.items() <= ti.xcoms.items()

    again(ti)

    assert wanted.items() <= ti.xcoms.items()


def test_a_file_that_grows_while_it_is_read_is_not_sent(task, sandbox, files) -> None:
    ti = task(DeliverFilesOperator, files=files, **DELIVERY)
    with during_upload("b.csv", 1000, lambda: Path(files[1]).write_bytes(b"Y" * 2000)), pytest.raises(SourceChanged):
        ti.run()

    sandbox.assert_nothing_sent()


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_full_account_keeps_the_draft_until_a_slot_frees(task, sandbox, files, hook, deferrable) -> None:
    blocker = task(DeliverFilesOperator, files=files, **DELIVERY).run()
    sandbox.patch_account(outstanding_transfer_limit=1)
    ti = task(DeliverFilesOperator, files=files, deferrable=deferrable, **DELIVERY)
    sleep, waits = ti.time.sleep, []

    def sleep_then_free(seconds: float) -> None:
        sleep(seconds)
        waits.append(seconds)
        if len(waits) == 3:
            sandbox.cancel(blocker["id"])

    ti.time.sleep = sleep_then_free

    assert ti.run()["status"] == "pending"
    assert len(waits) >= 3
    assert calls(sandbox).count("POST transfers") == 2, "no draft but the blocker's and this one"


@pytest.mark.parametrize("deferrable", [True, False])
def test_waiting_for_a_slot_stops_at_slot_timeout(task, sandbox, files, deferrable) -> None:
    task(DeliverFilesOperator, files=files, **DELIVERY).run()
    sandbox.patch_account(outstanding_transfer_limit=1)
    ti = task(DeliverFilesOperator, files=files, deferrable=deferrable, slot_timeout=600, **DELIVERY)

    with pytest.raises(TransferLimitReached):
        ti.run()
    assert 480 <= ti.time.now <= 600


def test_attaching_other_files_after_the_send_fails(task, sandbox, files) -> None:
    transfer_id = task(CreateTransferOperator, **DELIVERY).run()
    attach = task(AttachFilesOperator, transfer_id=transfer_id, files=files[:1])
    attach.run()
    task(SendTransferOperator, transfer_id=transfer_id).run()
    attach.make = task(AttachFilesOperator, transfer_id=transfer_id, files=files).make
    attach.clear()

    with pytest.raises(AirflowFailException, match="already delivered .*b.csv"):
        attach.run()


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize("removed", [0, 1, 2])
def test_files_that_are_not_delivered_now_are_removed_in_several_tries(
    task, sandbox, files, hook, deferrable, removed
) -> None:
    """A file that an earlier try has removed is not one whose upload may still arrive."""
    transfer_id = task(CreateTransferOperator, **DELIVERY).run()
    attach = task(AttachFilesOperator, transfer_id=transfer_id, files=files, retries=1, deferrable=deferrable)
    last = attach.run()[removed]["id"]
    other = Path(files[0]).with_name("d.csv")
    other.write_bytes(b"D")
    attach.make = task(
        AttachFilesOperator, transfer_id=transfer_id, files=str(other), retries=1, deferrable=deferrable
    ).make
    fault = {"status": 429, "retry_after": "30"} if deferrable else {"status": 400}
    sandbox.plan_faults({"kind": "error", "method": "DELETE", "path": f"*/files/{last}"} | fault)
    attach.clear()
    if not deferrable:
        with pytest.raises(AirflowFailException):
            attach.run()
        attach.clear()

    attach.run()

    assert stored(sandbox, transfer_id) == on_disk([str(other)])


@pytest.mark.parametrize("size", [1000, 500], ids=["of the same size", "of another size"])
def test_attaching_leaves_the_file_of_another_task_alone(task, sandbox, files, hook, size) -> None:
    transfer_id = task(CreateTransferOperator, **DELIVERY).run()
    task(AttachFilesOperator, transfer_id=transfer_id, files=files[0]).run()
    first = stored(sandbox, transfer_id)
    Path(files[0]).write_bytes(b"Z" * size)

    with pytest.raises(AirflowFailException, match="a.csv"):
        task(AttachFilesOperator, transfer_id=transfer_id, files=files[0]).run()

    assert stored(sandbox, transfer_id) == first


def test_attaching_returns_each_file_with_its_digest(task, sandbox, files) -> None:
    transfer_id = task(CreateTransferOperator, **DELIVERY).run()
    attach = task(AttachFilesOperator, transfer_id=transfer_id, files=files)

    attached = attach.run()

    assert [file.keys() for file in attached] == [{"id", "name", "size", "sha256"}] * 3
    assert [file["name"] for file in attached] == ["a.csv", "b.csv", "c.csv"]
    assert {file["name"]: file["sha256"] for file in attached} == on_disk(files)
    assert again(attach) == attached
    assert task(SendTransferOperator, transfer_id=transfer_id).run()["files"] == attached
    assert again(attach) == attached, "of a sent transfer, too"


@pytest.mark.parametrize("nothing", [None, "", "None"])
def test_discarding_nothing_succeeds(task, sandbox, nothing) -> None:
    assert task(DiscardTransferOperator, transfer_id=nothing).run() is True
    assert calls(sandbox) == []


def test_a_link_that_cannot_be_made_fails_no_delivery(task, sandbox, files, monkeypatch) -> None:
    no_backend = mock.Mock(side_effect=RuntimeError("no backend"))
    monkeypatch.setattr("outbound_transfer.links.transfer.TransferLink", no_backend)
    assert task(DeliverFilesOperator, files=files, **DELIVERY).run()["status"] == "pending"


def test_the_table_of_deliveries_has_the_security_option(task, files, monkeypatch, tmp_path) -> None:
    memory.keep_deliveries_in(monkeypatch, sqlite_connection(tmp_path / "deliveries.db"))
    for security in (None, "email"):
        task(DeliverFilesOperator, files=files, **DELIVERY | {"subject": str(security)}, security=security).run()
    with closing(sqlite3.connect(tmp_path / "deliveries.db")) as database:
        rows = database.execute("SELECT security FROM outbound_transfer_deliveries ORDER BY created_at").fetchall()
    assert rows == [("",), ("email",)]


def test_the_speed_of_an_upload_is_without_its_wait(task, files, sandbox, caplog, monkeypatch) -> None:
    caplog.set_level("INFO")
    ti = task(DeliverFilesOperator, files=files[0], **DELIVERY)
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + ti.time.now)
    sandbox.plan_faults(
        {"kind": "error", "method": "POST", "path": "*/files", "status": 429, "code": "rate_limited",
         "headers": {"Retry-After": "100"}}
    )  # fmt: skip
    ti.run()
    assert ti.time.now >= 100
    assert re.search(r"Attached a.csv: .* in \d\.", caplog.text)
