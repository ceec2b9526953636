"""The ledger beside real operators: it tells the truth of a delivery, and no fault of it is a delivery's."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.files import sources
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.ledger import worker
from outbound_transfer.ledger.background_writer import BackgroundWriter
from outbound_transfer.ledger.recorder import DeliveryRecorder
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.protocol.models import to_summary_dict
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.warehouse.deliveries import DeliveryTables
from outbound_transfer.warehouse.tables import DELIVERIES
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance, ProcessCrashed, SimulatedClock, dying_after
from support.timeouts import TEST_TIMEOUT, eventually
from support.warehouses import duckdb_hook, sqlite_hook

CONTENTS = {"a.csv": b"a,b\n" * 1_000, "b.csv": b"", "c.csv": b"x" * 2_500_000}
RECIPIENTS = ["ann@example.com", {"email": "bob@example.com", "phone": "+44 7700 900123"}]


@dataclass
class Task(FakeTaskInstance):
    """A task instance that the ledger can name."""

    task_id: str = "deliver"
    dag_id: str = "dag"
    run_id: str = "run"
    map_index: int = -1


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return [str(tmp_path / name) for name in CONTENTS]


@pytest.fixture
def keep_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def keep_at(connection: str) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", connection)
        monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "ledger")

    return keep_at


@pytest.fixture
def fetch(tmp_path: Path, keep_at) -> Callable[[str], list[tuple[Any, ...]]]:
    """A ledger in SQLite."""
    file = tmp_path / "ledger.db"
    keep_at(json.dumps({"conn_type": "sqlite", "host": str(file)}))
    return sqlite_hook(file).fetch


@pytest.fixture(params=["sqlite", "duckdb", "postgresql", "mysqlclient"])
def any_fetch(request, tmp_path: Path, keep_at) -> Callable[[str], list[tuple[Any, ...]]]:
    """A ledger in each database, through Airflow's own hook of it."""
    if request.param == "sqlite":
        return request.getfixturevalue("fetch")
    if request.param == "duckdb":
        file = request.getfixturevalue("memory") / "ledger.duckdb"
        keep_at(json.dumps({"conn_type": "duckdb", "host": str(file)}))
        return duckdb_hook(file).fetch
    if request.param == "mysqlclient":
        keep_at(request.getfixturevalue("mariadb").airflow_connection(request.param))
        return request.getfixturevalue("hook_of")(request.param).fetch
    database = request.getfixturevalue("postgres")
    keep_at(database.airflow_connection)

    def fetch(query: str) -> list[tuple[Any, ...]]:
        with database.connect() as connection:
            rows = connection.execute(query).fetchall()
        connection.close()
        return rows

    return fetch


def fetch_all(fetch) -> list[dict[str, Any]]:
    names = [column.name for column in DELIVERIES.columns]
    found = [
        dict(zip(names, row, strict=True))
        for row in fetch(f"SELECT {', '.join(names)} FROM outbound_transfer_deliveries ORDER BY map_index, created_at")
    ]
    return [
        row | {"files": row["files"] if isinstance(row["files"], list) else json.loads(row["files"])} for row in found
    ]


def row_of(fetch) -> dict[str, Any]:
    (row,) = fetch_all(fetch)
    return row


def digests(row: dict[str, Any]) -> dict[str, str | None]:
    return {file["name"]: file["sha256"] for file in row["files"]}


RIGHT = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}


@pytest.fixture
def task(sandbox, connection, files) -> Callable[..., Task]:
    clock = SimulatedClock(sandbox)

    def task(operator: type = DeliverFilesOperator, task_id: str = "deliver", **arguments: Any) -> Task:
        delivery = {"subject": "Report", "recipients": RECIPIENTS, "files": files}
        given = delivery | arguments if operator is DeliverFilesOperator else arguments
        return Task(lambda: operator(task_id=task_id, **given), clock, task_id=task_id)

    return task


def test_a_delivery_is_in_the_ledger_with_its_digests(task, any_fetch) -> None:
    sent = task().run()

    row = row_of(any_fetch)
    assert (row["transfer_id"], row["status"], row["error"]) == (sent["id"], "pending", None)
    assert (row["dag_id"], row["task_id"], row["run_id"], row["map_index"]) == ("dag", "deliver", "run", -1)
    assert digests(row) == RIGHT
    assert row["size_bytes"] == sum(map(len, CONTENTS.values()))


def test_steps_that_are_tasks_share_a_row_and_the_sensor_ends_it(task, fetch, files, sandbox) -> None:
    transfer_id = task(CreateTransferOperator, "create", subject="Report", recipients=RECIPIENTS).run()
    assert (row_of(fetch)["status"], row_of(fetch)["files"]) == ("draft", [])
    task(AttachFilesOperator, "attach", transfer_id=transfer_id, files=files[:2]).run()
    task(AttachFilesOperator, "more", transfer_id=transfer_id, files=files[2:]).run()
    assert digests(row_of(fetch)) == RIGHT
    task(SendTransferOperator, "send", transfer_id=transfer_id).run()
    sandbox.pickup(transfer_id, "ann@example.com")
    sensor = TransferSensor(task_id="wait", transfer_id=transfer_id, accept_partial=True)
    sensor.poke(Task(lambda: sensor, SimulatedClock(sandbox), task_id="wait").context())
    assert (row_of(fetch)["status"], row_of(fetch)["picked_up_count"], row_of(fetch)["finished_at"]) == (
        "partial",
        1,
        None,
    )
    sandbox.pickup(transfer_id, "bob@example.com")
    assert sensor.poke(Task(lambda: sensor, SimulatedClock(sandbox), task_id="wait").context()).is_done
    row = row_of(fetch)
    assert (row["status"], row["picked_up_count"], row["task_id"], digests(row)) == ("complete", 2, "create", RIGHT)
    assert row["finished_at"]


def test_a_wait_that_the_triggerer_ended_is_written_by_the_worker(task, fetch, sandbox) -> None:
    waiting = task(wait=True, deferrable=True, poke_interval=1, on_canceled="succeed")
    operator = waiting.make()
    sent = task().run()
    sandbox.cancel(sent["id"])
    with OutboundTransferHook() as hook:
        seen = to_summary_dict(hook.get_transfer(sent["id"]))
    waiting.try_number = 1
    operator.execute_complete(waiting.context(), {"status": "finished", "transfer": seen, "message": ""})
    assert (row_of(fetch)["status"], row_of(fetch)["error"]) == ("canceled", None)


def test_a_wait_ends_though_the_service_s_connection_is_gone(task, fetch, monkeypatch) -> None:
    waiting = task(wait=True, deferrable=True, outbound_transfer_conn_id="gone")
    seen = {"id": "t1", "status": "complete", "subject": "S", "recipients": []}
    event = {"status": "finished", "transfer": seen, "message": ""}
    assert waiting.make().execute_complete(waiting.context(), event)["status"] == "complete"


def test_a_failed_try_is_told_and_a_retry_that_uploads_nothing_again_knows_the_digests(
    task, fetch, sandbox, tmp_path
) -> None:
    delivery = task(keep_draft=True)
    sandbox.patch_account(outstanding_transfer_limit=0)
    with pytest.raises(Exception, match="transfer_limit_reached"):
        delivery.run()
    row = row_of(fetch)
    assert (row["status"], digests(row)) == ("draft", RIGHT)
    assert row["error"].startswith("409 transfer_limit_reached")
    sandbox.patch_account(outstanding_transfer_limit=10)
    # What the first try wrote is lost, so the second knows from the task's state alone.
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database, database:
        database.execute("DELETE FROM outbound_transfer_deliveries")
    delivery.clear()
    delivery.run()
    row = row_of(fetch)
    assert (row["status"], row["error"], row["try_number"], digests(row)) == ("pending", None, 2, RIGHT)
    assert [r["path"].endswith("/files") for r in sandbox.requests()].count(True) == 3


def test_a_file_that_changed_between_two_tries_has_its_new_digest(task, fetch, sandbox, files) -> None:
    delivery = task(keep_draft=True)
    sandbox.plan_faults({"path": "/v1/transfers/*/send", "kind": "error", "status": 403})
    with pytest.raises(AirflowFailException):
        delivery.run()
    Path(files[0]).write_bytes(b"c,d\n" * 1_000)
    delivery.clear()
    delivery.run()
    rows = {row["status"]: row for row in fetch_all(fetch)}
    assert sorted(rows) == ["discarded", "pending"]
    assert digests(rows["pending"]) == RIGHT | {"a.csv": hashlib.sha256(b"c,d\n" * 1_000).hexdigest()}


def test_a_discarded_draft_is_marked_discarded(task, fetch) -> None:
    transfer_id = task(CreateTransferOperator, "create", subject="Report", recipients=RECIPIENTS).run()
    assert task(DiscardTransferOperator, "discard", transfer_id=transfer_id).run() is True
    assert (row_of(fetch)["status"], row_of(fetch)["error"]) == ("discarded", None)


def test_a_draft_that_the_key_does_not_see_is_not_marked_discarded(task, fetch, sandbox, monkeypatch) -> None:
    transfer_id = task(CreateTransferOperator, "create", subject="Report", recipients=RECIPIENTS).run()
    of_another = json.loads(sandbox.airflow_connection()) | {"password": sandbox.new_key("bob@example.com")}
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(of_another))
    assert task(DiscardTransferOperator, "discard", transfer_id=transfer_id).run() is True
    assert row_of(fetch)["status"] == sandbox.transfer(transfer_id)["status"] == "draft"


def test_the_row_is_there_while_the_upload_is_under_way(task, fetch, monkeypatch) -> None:
    """The file's second chunk is not read before the draft's row is in the database."""
    read, seen = sources.Source._read, []

    def rows_there():
        with suppress(sqlite3.OperationalError):  # no table yet
            return fetch_all(fetch)

    def read_later(source, file, size):
        if source.name == "c.csv" and not seen:
            seen.extend(eventually(rows_there))
        return read(source, file, size)

    monkeypatch.setattr(sources.Source, "_read", read_later)
    task().run()
    assert [row["status"] for row in seen] == ["draft"]


def test_no_secret_and_no_address_gets_into_the_ledger(task, fetch, sandbox, tmp_path) -> None:
    waiting = task(security="question", security_question="Which colour?", security_answer="puce-coloured")
    sandbox.plan_faults({"path": "/v1/transfers/*/send", "kind": "error", "status": 403})
    with pytest.raises(AirflowFailException):
        waiting.run()
    kept = str(fetch_all(fetch))
    assert "403" in kept
    for secret in ("puce", "7700", "@example.com", sandbox.transfer_api_key, sandbox.event_api_key):
        assert secret not in kept


def recipients_of(fetch) -> list[tuple[str, bool]]:
    ((recipients,),) = fetch("SELECT recipients FROM outbound_transfer_delivery_recipients")
    assert not re.search("7700 ?900", recipients)
    return [(each["email"], each["picked_up_at"] is not None) for each in json.loads(recipients)]


def test_who_has_picked_up_is_in_a_table_of_its_own(task, fetch, sandbox) -> None:
    sent = task().run()
    assert recipients_of(fetch) == [("ann@example.com", False), ("bob@example.com", False)]
    sandbox.pickup(sent["id"], "bob@example.com")
    sensor = TransferSensor(task_id="wait", transfer_id=sent["id"])
    sensor.poke(Task(lambda: sensor, SimulatedClock(sandbox), task_id="wait").context())
    assert recipients_of(fetch) == [("ann@example.com", False), ("bob@example.com", True)]
    assert "@example.com" not in str(fetch_all(fetch))


def test_recipients_are_recorded_nowhere_if_they_are_not_to_be_shown(task, fetch, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "none")
    task().run()
    assert row_of(fetch)["recipient_count"] == 2
    assert fetch("SELECT * FROM outbound_transfer_delivery_recipients") == []


#: Arguments of a delivery that fails before it has a draft, and what its row says.
FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "no file": ({"files": ["/nowhere/report-*.csv"]}, "/nowhere/report-*.csv"),
    "no subject": ({"subject": None}, "nothing was created: - subject must"),
    "no address": ({"recipients": ["ann"]}, "is not an address"),
    "no connection": ({"outbound_transfer_conn_id": "missing"}, "missing"),
    "no key": ({"outbound_transfer_conn_id": "without_key"}, "key"),
    "a wrong key": ({"outbound_transfer_conn_id": "wrong_key"}, "401"),
    "a wrong host": ({"outbound_transfer_conn_id": "wrong_host"}, "must hold no path"),
}


@pytest.mark.parametrize("fault", FAILURES)
def test_a_failure_before_a_draft_is_in_the_ledger_until_a_try_succeeds(
    fault, task, fetch, sandbox, monkeypatch
) -> None:
    right = json.loads(sandbox.airflow_connection())
    for name, values in {
        "without_key": {"password": ""},
        "wrong_key": {"password": "obt_of_nobody_0123456789"},
        "wrong_host": {"host": "https://account.example.com/a/path"},
    }.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(right | values))
    arguments, said = FAILURES[fault]
    failing = task(**arguments, _airflow_from_mapped=True)  # checked when it runs
    with pytest.raises(Exception, match=r"\w"):  # each is of its own kind
        failing.run()

    row = row_of(fetch)
    assert (row["status"], row["account"], row["task_id"], row["try_number"]) == ("failed", "-", "deliver", 1)
    assert said in row["error"]
    assert "0123456789" not in row["error"]

    if "key" in fault:  # a retry with another key cannot know what the first one has sent
        return
    again = task()
    again.store, again.try_number, again.max_tries = failing.store, 1, 1
    again.run()
    row = row_of(fetch)
    assert (row["status"], row["error"], row["try_number"]) == ("pending", None, 2)


def test_a_sensor_that_fails_is_no_delivery(fetch, sandbox, connection) -> None:
    sensor = TransferSensor(task_id="wait", transfer_id="of_nobody")
    with pytest.raises(AirflowFailException):
        sensor.poke(Task(lambda: sensor, SimulatedClock(sandbox), task_id="wait").context())
    with suppress(sqlite3.OperationalError):  # there may be no table
        assert fetch_all(fetch) == []


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connection_to(server: socket.socket) -> str:
    host, port = server.getsockname()
    return json.dumps({"conn_type": "postgres", "host": host, "port": port, "login": "ann", "schema": "x"})


def refused() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return connection_to(server)


BROKEN: dict[str, str] = {
    "refuses": "",
    "hangs": "",
    "is not a SQL connection": json.dumps({"conn_type": "http", "host": "127.0.0.1"}),
    "has a type that nobody knows": json.dumps({"conn_type": "nonsense"}),
    "is a folder": json.dumps({"conn_type": "sqlite", "host": "/"}),
}


@pytest.mark.parametrize("fault", [*BROKEN, "does not exist", "has a hostile prefix", "breaks in the middle"])
def test_no_fault_of_the_ledger_is_the_delivery_s(
    fault, task, sandbox, keep_at, deaf, monkeypatch, tmp_path, capfd
) -> None:
    asked_at_close: list[tuple[float, list[str]]] = []
    close = BackgroundWriter.close

    def closed(writer, patience):
        asked_at_close.append((patience, [request["path"] for request in sandbox.requests()]))
        return close(writer, min(patience, 0.5) if fault == "hangs" else patience)

    monkeypatch.setattr(BackgroundWriter, "close", closed)
    if fault == "does not exist":
        monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "nobody")
    elif fault in ("has a hostile prefix", "breaks in the middle"):
        keep_at(json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}))
        if fault == "has a hostile prefix":
            monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_TABLE_PREFIX", "x" * 2_000)
        else:
            break_after_one(monkeypatch)
    else:
        keep_at(BROKEN[fault] or (connection_to(deaf) if fault == "hangs" else refused()))

    sent = task().run()

    assert sent["status"] == "pending"
    paths = [request["path"] for request in sandbox.requests()]
    assert [path.rpartition("/")[2] for path in paths] == ["transfers", "files", "files", "files", "send"]
    if fault != "does not exist":
        assert asked_at_close == [(worker.FLUSH_TIMEOUT, paths)], "waited for once, after everything was done"
    said = "".join(capfd.readouterr())
    assert said.count("Could not write to the delivery ledger" if fault != "hangs" else "ledger did not respond") == (
        fault != "does not exist"
    )
    assert "elivery ledger" in said


def break_after_one(monkeypatch) -> None:
    save, done = DeliveryTables._save, []

    def break_(tables, note):
        if done:
            raise OSError("the database is gone")
        done.append(save(tables, note))

    monkeypatch.setattr(DeliveryTables, "_save", break_)


def test_no_thread_begins_where_no_ledger_is_set(task, monkeypatch) -> None:
    monkeypatch.setattr(BackgroundWriter, "submit", None)
    task().run()


REAL = """
    from airflow.sdk import DAG
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.sensors.transfer import TransferSensor

    with DAG("kept", schedule=None):
        deliver = DeliverFilesOperator.partial(
            task_id="deliver", recipients=["ann@example.com"], files={files!r},
        ).expand(subject=["One", "Two"])
        TransferSensor.partial(
            task_id="wait", deferrable=True, poke_interval=1,
        ).expand(transfer_id=deliver.output.map(lambda transfer: transfer["id"]))
"""


def test_a_real_run_is_in_the_ledger(run_dag, connection, recipients_pick_up, files, fetch) -> None:
    run = run_dag(REAL.format(files=files))
    assert run.state == "success"
    rows = fetch_all(fetch)
    assert [(row["map_index"], row["subject"], row["status"]) for row in rows] == [
        (0, "One", "complete"),
        (1, "Two", "complete"),
    ]
    assert {(row["dag_id"], row["task_id"], row["run_id"]) for row in rows} == {("kept", "deliver", run.dag_run.run_id)}
    assert [digests(row) for row in rows] == [RIGHT, RIGHT]


def test_a_send_whose_end_nobody_has_seen_is_in_doubt(task, sandbox, files, fetch, caplog) -> None:
    """Its process dies when the service has sent, before it knows; the next try finds out."""
    ti = task(DeliverFilesOperator, files=files, subject="Report", recipients=RECIPIENTS)
    with caplog.at_level("INFO"), dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        ti.run()

    assert row_of(fetch)["status"] == "in doubt"
    assert f"Sending transfer '{sandbox.assert_sent_once()}'" in caplog.text, "the log says it before it is known"

    ti.clear()
    ti.run()
    assert row_of(fetch)["status"] == "pending"


#: Delivers a file, and is killed when the service has sent it. Writing to the ledger takes longer than that.
KILLED = """
import os, signal, sys, time
from types import SimpleNamespace
from outbound_transfer.client import client
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.warehouse.deliveries import DeliveryTables
from support.tasks import FakeTaskInstance

send, save = client.send, DeliveryTables.save

def send_and_die(*arguments):
    received = send(*arguments)
    if arguments[2].operation is Operation.SEND:
        os.kill(os.getpid(), signal.SIGKILL)
    return received

client.send, DeliveryTables.save = send_and_die, lambda *arguments: (time.sleep(0.3), save(*arguments))
task = DeliverFilesOperator(task_id="deliver", files=sys.argv[1], subject="Report", recipients="ann@example.com")
FakeTaskInstance(lambda: task, SimpleNamespace(sleep=time.sleep, clock=time.monotonic)).run()
"""


def test_a_send_whose_process_is_killed_is_in_doubt(sandbox, connection, files, fetch) -> None:
    command = [sys.executable, "-c", KILLED, files[0]]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")}
    killed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TEST_TIMEOUT, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (row_of(fetch)["transfer_id"], row_of(fetch)["status"]) == (sandbox.assert_sent_once(), "in doubt")


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_draft_that_waits_for_a_slot_is_not_in_doubt(task, sandbox, files, fetch, deferrable, monkeypatch) -> None:
    told: list[bool] = []
    sandbox.patch_account(outstanding_transfer_limit=0)
    given = {"subject": "Report", "recipients": RECIPIENTS, "deferrable": deferrable, "slot_timeout": 600}
    ti = task(DeliverFilesOperator, files=files, keep_draft=True, **given)
    real = DeliveryRecorder.record_send

    def record_send(recorder: DeliveryRecorder, transfer_id: str, *, in_doubt: bool) -> None:
        told.append(in_doubt)
        real(recorder, transfer_id, in_doubt=in_doubt)

    monkeypatch.setattr(DeliveryRecorder, "record_send", record_send)
    with pytest.raises(Exception, match="limit"):
        ti.run()

    assert [True, True] not in [told[at : at + 2] for at in range(len(told))], "after each refusal, it is a draft"
    assert row_of(fetch)["status"] == "draft"


def test_a_send_in_three_tasks_is_in_doubt_until_it_is_known(task, sandbox, files, fetch) -> None:
    create = task(CreateTransferOperator, "create", subject="Report", recipients=RECIPIENTS)
    draft = create.run()
    task(AttachFilesOperator, "attach", transfer_id=draft, files=files).run()
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        task(SendTransferOperator, "send", transfer_id=draft).run()

    assert row_of(fetch)["status"] == "in doubt"

    task(SendTransferOperator, "send", transfer_id=draft).run()
    assert row_of(fetch)["status"] == "pending"
