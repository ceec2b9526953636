"""Receipts of what was sent: written after the send by each operator that sends, whatever becomes of the writing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.io import store
from jsonschema import Draft202012Validator

from outbound_transfer.decorators.deliver_files import _DeliverFilesDecoratedOperator
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from support.airflow_names import AirflowFailException
from support.deliveries import DELIVERY, billed, digest
from support.keyed_tasks import sqlite_connection
from support.object_storage import Bucket, connection_json, running_s3
from support.repository import REPOSITORY
from support.sftp_server import running_sftp
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance

SCHEMA = json.loads((REPOSITORY / "plugins/outbound_transfer/receipt.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
PHONE, QUESTION, ANSWER = "+1 555 0100 200", "Your customer number?", "an answer that nobody knows"
API_KEY = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture
def time(sandbox) -> SimulatedClock:
    return SimulatedClock(sandbox)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.csv", "ü b.csv"):
        (folder / name).write_text(name * 10)
    return [str(folder / name) for name in ("a.csv", "ü b.csv")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "receipts"


@pytest.fixture
def into(folder: Path) -> str:
    return f"{folder}/{{transfer_id}}.json"


def read(folder: Path, transfer_id: str) -> dict[str, Any]:
    """The receipt of a transfer, which must be valid and alone in its folder but for those of other transfers."""
    assert [name for name in os.listdir(folder) if not name.endswith(".json")] == [], "nothing half written stays"
    receipt = json.loads((folder / f"{transfer_id}.json").read_text())
    VALIDATOR.validate(receipt)
    return receipt


def digests(receipt: dict[str, Any]) -> dict[str, Any]:
    return {file["name"]: file["sha256"] for file in receipt["files"]}


def on_disk(files: list[str]) -> dict[str, str]:
    return {Path(file).name: digest(Path(file).read_bytes()) for file in files}


def test_it_says_what_was_sent_to_whom_and_by_which_task(time, files, folder, into, sandbox) -> None:
    ti = task_instance(DeliverFilesOperator, time, files=files, security="email", receipt=into, **DELIVERY)
    ti.map_index = 3
    sent = ti.run()

    found = read(folder, sent["id"])
    assert digests(found) == on_disk(files)
    assert {file["name"]: file["size"] for file in found["files"]} == {"a.csv": 50, "ü b.csv": 80}
    assert found["recipients"] == [{"email": "ann@example.com", "name": "ann", "picked_up_at": None}]
    assert found["transfer"] == {
        "id": sent["id"],
        "subject": "Report",
        "status": "pending",
        "sent_at": sent["sent_at"],
        "expires_at": sent["expires_at"],
        "security": "email",
    }
    task = {"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": 3, "try_number": 1}
    assert (found["written_by"], found["provider_version"]) == (task, version("airflow-provider-outbound-transfer"))
    assert f"http://{found['account']}" == sandbox.base_url
    assert [call for call in sandbox.requests() if call["method"] == "GET"] == [], "the send's response says it all"


def test_each_operator_that_sends_writes_one(time, files, folder, into, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ROWS", sqlite_connection(tmp_path / "rows.db"))
    query = {"sql_conn_id": "rows", "sql": "SELECT 7 AS id", "file_name": "rows.csv"}
    function = {"python_callable": lambda: {"files": files, "security": "email"}}
    first = task_instance(DeliverFilesOperator, time, files=files, **DELIVERY).run()
    again_to = {"transfer_id": first["id"], "files": files, "security": None}

    sent = [
        task_instance(SqlToOutboundTransferOperator, time, receipt=into, **query, **DELIVERY).run(),
        task_instance(_DeliverFilesDecoratedOperator, time, receipt=into, **function, **DELIVERY).run(),
        task_instance(RedeliverFilesOperator, time, receipt=into, **again_to).run(),
    ]

    by_query, by_function, again = [read(folder, transfer["id"]) for transfer in sent]
    assert list(digests(by_query)) == ["rows.csv"]
    assert None not in digests(by_query).values()
    assert digests(by_function) == digests(again) == on_disk(files)
    security = [found["transfer"]["security"] for found in (by_query, by_function, again)]
    assert security == ["account_default", "email", "account_default"]


@pytest.fixture
def three_tasks(time, files, into) -> Callable[..., Any]:
    """Create, attach and send in three tasks; returns the last."""

    def run(**arguments: Any) -> FakeTaskInstance:
        create = FakeTaskInstance(lambda: CreateTransferOperator(task_id="create", **DELIVERY, **arguments), time)
        create.task_id = "create"
        transfer_id = create.run()
        attach = FakeTaskInstance(
            lambda: AttachFilesOperator(task_id="attach", transfer_id=transfer_id, files=files), time
        )
        attach.task_id, attach.upstream = "attach", {"create": create}
        attach.run()
        send = FakeTaskInstance(
            lambda: SendTransferOperator(task_id="send", transfer_id=transfer_id, receipt=into), time
        )
        send.task_id, send.upstream = "send", {"create": create, "attach": attach}
        send.run()
        return send

    return run


def test_three_tasks_and_a_sensor_write_one_receipt(three_tasks, time, files, folder, into, sandbox) -> None:
    send = three_tasks(security="email")
    transfer_id = send.result["id"]
    first = read(folder, transfer_id)
    assert (digests(first), first["transfer"]["security"]) == (on_disk(files), "email")
    assert first["written_by"]["task_id"] == "send"

    sandbox.pickup(transfer_id, "ann@example.com")
    arguments = {"task_id": "wait", "transfer_id": transfer_id, "receipt": into}
    wait = FakeTaskInstance(lambda: with_hook(TransferSensor(**arguments)), time)
    wait.task_id, wait.upstream = "wait", {**send.upstream, "send": send}
    calls = len(sandbox.requests())
    wait.run()
    assert len(sandbox.requests()) == calls + 1, "the poke has read its files"

    last = read(folder, transfer_id)
    assert (last["files"], last["transfer"]["security"]) == (first["files"], "email")
    assert (last["transfer"]["status"], last["written_by"]["task_id"]) == ("complete", "wait")
    assert last["recipients"][0]["picked_up_at"]


def with_hook(sensor: TransferSensor) -> TransferSensor:
    """A sensor's hook takes no options, which the task instance would give it."""
    hook = sensor.hook
    sensor.hook = lambda **_: hook()  # type: ignore[method-assign]
    return sensor


def test_a_retry_and_a_clear_write_it_again_and_send_nothing(time, files, folder, into, sandbox) -> None:
    ti = task_instance(DeliverFilesOperator, time, files=files, receipt=into, **DELIVERY)
    sent = ti.run()
    first = read(folder, sent["id"])
    (folder / f"{sent['id']}.json").unlink()
    sandbox.pickup(sent["id"], "ann@example.com")

    assert again(ti)["id"] == sent["id"]

    second = read(folder, sent["id"])
    assert second["files"] == first["files"]
    assert (second["transfer"]["status"], second["written_by"]["try_number"]) == ("complete", 2)
    assert billed(sandbox) == {sent["id"]: 1}


def test_a_receipt_that_cannot_be_written_is_said_and_fails_nothing(time, files, folder, into, sandbox, capsys) -> None:
    folder.parent.mkdir()
    folder.write_text("a file, where the folder is to be")
    ti = task_instance(DeliverFilesOperator, time, files=files, receipt=into, **DELIVERY)
    sent = ti.run()

    (said,) = [line for line in capsys.readouterr().out.splitlines() if "The receipt of" in line]
    assert f"The receipt of transfer '{sent['id']}' could not be written to {folder}/{sent['id']}.json: " in said
    assert "clear this task: it writes the receipt, and sends nothing again" in said

    folder.unlink()
    assert again(ti)["id"] == sent["id"]
    assert digests(read(folder, sent["id"])) == on_disk(files)
    assert billed(sandbox) == {sent["id"]: 1}


def test_a_package_that_is_missing_is_named(time, files, capsys) -> None:
    given = {"files": files, "receipt": "gs://bucket/{transfer_id}.json", **DELIVERY}
    assert task_instance(DeliverFilesOperator, time, **given).run()["status"] == "pending"
    assert "pip install 'airflow-provider-outbound-transfer[gcs]'" in capsys.readouterr().out


def test_no_secret_is_in_it(time, files, folder, into, three_tasks) -> None:
    by_phone = {"subject": "Report", "recipients": [{"email": "ann@example.com", "phone": PHONE}], "security": "sms"}
    by_answer = {"security": "question", "security_question": QUESTION, "security_answer": ANSWER, **DELIVERY}
    for arguments in (by_phone, by_answer):
        task_instance(DeliverFilesOperator, time, files=files, receipt=into, **arguments).run()
    three_tasks(security="question", security_question=QUESTION, security_answer=ANSWER)

    written = [path.read_text() for path in folder.iterdir()]
    assert len(written) == 3
    key = json.loads(os.environ[API_KEY])["password"]
    for secret in (PHONE, "".join(filter(str.isdigit, PHONE)), ANSWER, QUESTION, key):
        assert [text for text in written if secret in text] == []


def test_a_template_that_lost_the_id_fails_before_anything_is_created(time, files, sandbox) -> None:
    ti = task_instance(DeliverFilesOperator, time, files=files, receipt="{{ var.value.receipts }}", **DELIVERY)
    with pytest.raises(AirflowFailException, match="receipt must be"):
        ti.run()
    assert sandbox.requests() == []


def test_an_unsent_draft_gets_none(time, files, folder, into, sandbox) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    with pytest.raises(AirflowFailException, match="no_credit"):
        task_instance(DeliverFilesOperator, time, files=files, receipt=into, **DELIVERY).run()
    assert not folder.exists()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as address:
        yield address


def test_an_object_store_takes_it(s3, time, files, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", connection_json(s3))
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    bucket = Bucket(s3, "receipts")
    into = f"{bucket.uri}/of/{{transfer_id}}.json"
    sent = task_instance(DeliverFilesOperator, time, files=files, receipt=into, **DELIVERY).run()
    (key,) = [found["Key"] for found in bucket._s3.list_objects_v2(Bucket="receipts")["Contents"]]
    assert key == f"of/{sent['id']}.json"
    found = json.loads(bucket._s3.get_object(Bucket="receipts", Key=key)["Body"].read())
    VALIDATOR.validate(found)
    assert digests(found) == on_disk(files)
    bucket.close()


def test_a_server_of_sftp_takes_it(time, files, monkeypatch) -> None:
    with running_sftp() as server:
        monkeypatch.setenv("AIRFLOW_CONN_SFTP_DEFAULT", server.connection_json())
        monkeypatch.setattr(store, "_STORE_CACHE", {})
        (server.root / "out").mkdir()
        (server.root / "out").chmod(0o777)
        into = "sftp://sftp_default@/out/receipts/{transfer_id}.json"
        ti = task_instance(DeliverFilesOperator, time, files=files, receipt=into, **DELIVERY)
        sent = ti.run()
        again(ti)
        found = read(server.root / "out/receipts", sent["id"])
    assert (found["written_by"]["try_number"], digests(found)) == (2, on_disk(files))
