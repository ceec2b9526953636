"""A newcomer's mistakes: each row of docs/troubleshooting.md is made, and its message is compared."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.cli.console import main
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.warehouse.dialects import duckdb
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.stack import free_ports
from support.repository import REPOSITORY
from support.tasks import FakeTaskInstance, SimulatedClock

ANN = "ann@example.com"


class Newcomer:
    """Makes mistakes, by the operators, the hook and the commands that a DAG or a terminal would use."""

    def __init__(self, sandbox: Sandbox, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sandbox, self.folder, self.monkeypatch = sandbox, folder, monkeypatch
        self.clock = SimulatedClock(sandbox)
        self.report = folder / "report.csv"
        self.report.write_text("a,b\n")

    def connect(self, conn_id: str = "outbound_transfer_default", **fields: Any) -> None:
        """Store a connection; what is not given is right."""
        right = json.loads(self.sandbox.airflow_connection())
        self.monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(right | fields))

    def warehouse(self, **fields: Any) -> None:
        """Store a connection `warehouse`."""
        self.monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(fields))

    def run(self, operator: type, xcom: Any = None, **arguments: Any) -> Any:
        """Run a task once, its templates rendered with what an upstream task has pushed, if anything."""
        task = operator(task_id="task", **arguments)
        task.render_template_fields({"ti": Upstream(xcom)})
        return FakeTaskInstance(lambda: task, self.clock).run()

    def deliver(self, **arguments: Any) -> Any:
        given = {"files": str(self.report), "subject": "Report", "recipients": [ANN]} | arguments
        return self.run(DeliverFilesOperator, **given)

    def wait(self, transfer_id: Any) -> Any:
        sensor = TransferSensor(task_id="task", transfer_id=transfer_id, poke_interval=1, timeout=1)
        return sensor.execute(FakeTaskInstance(lambda: sensor, self.clock, try_number=1).context())

    def ingest(self, sql_conn_id: str = "warehouse") -> Any:
        return self.run(EventFeedToSqlOperator, sql_conn_id=sql_conn_id)

    def test_connection(self) -> None:
        """Press *Test*, which shows a message instead of raising it."""
        is_right, message = OutboundTransferHook().test_connection()
        assert not is_right
        raise ValueError(message)


MISTAKES: dict[str, Callable[[Newcomer], object]] = {}


def mistake(name: str) -> Callable[[Callable[[Newcomer], object]], Callable[[Newcomer], object]]:
    def add(make: Callable[[Newcomer], object]) -> Callable[[Newcomer], object]:
        MISTAKES[name] = make
        return make

    return add


@mistake("a host that does not exist")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host="https://transfers.invalid")
    newcomer.deliver()


@mistake("a port where nothing listens")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host=f"http://127.0.0.1:{free_ports(1)[0]}")
    newcomer.deliver()


@mistake("https for a service that speaks http")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host=newcomer.sandbox.base_url.replace("http:", "https:"))
    newcomer.deliver()


@mistake("a path in the host")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host=newcomer.sandbox.base_url + "/v1")
    newcomer.deliver()


@mistake("the key in Login instead of Password")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(login=newcomer.sandbox.transfer_api_key, password="")
    newcomer.deliver()


@mistake("a key that was copied with a line break")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(password=newcomer.sandbox.transfer_api_key + "\n")
    newcomer.deliver()


@mistake("a key that was revoked")
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.revoke_key(newcomer.sandbox.transfer_api_key)
    newcomer.deliver()


@mistake("the event key as the transfer key")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(password=newcomer.sandbox.event_api_key)
    newcomer.test_connection()


@mistake("no event key for the feed")
def _(newcomer: Newcomer) -> None:
    newcomer.connect(extra={})
    newcomer.warehouse(conn_type="sqlite", host=str(newcomer.folder / "warehouse.db"))
    newcomer.ingest()


@mistake("a connection id that does not exist")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(outbound_transfer_conn_id="transfers")


@mistake("a connection type that does not exist")
def _(newcomer: Newcomer) -> None:
    newcomer.warehouse(conn_type="postgre", host="127.0.0.1")
    newcomer.ingest()


@mistake("a pattern that matches nothing")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=f"{newcomer.folder}/*.pdf")


@mistake("a file that does not exist")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=f"{newcomer.folder}/raport.csv")


@mistake("a folder as a file")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=str(newcomer.folder))


@mistake("files from a task that returned nothing")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files="{{ ti.xcom_pull('export') }}")


@mistake("files from a task that returned an empty list")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=[])


@mistake("two files of one name")
def _(newcomer: Newcomer) -> None:
    other = newcomer.folder / "north" / "report.csv"
    other.parent.mkdir()
    other.write_text("c,d\n")
    newcomer.deliver(files=[str(newcomer.report), str(other)])


@mistake("a file over the account's limit")
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(per_file_limit_mb=1)
    newcomer.report.write_bytes(bytes(1_100_000))
    newcomer.deliver()


@mistake("a subject from a template without a value")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(subject="{{ ti.xcom_pull('export') }}")


@mistake("a file's name from a template without a value")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files={"path": str(newcomer.report), "name": "{{ ti.xcom_pull('export') }}"})


@mistake("an address that is none")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=["ann.example.com"])


@mistake("addresses in one text")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients="ann@example.com, bob@example.com")


@mistake("a recipient's field that is misspelt")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=[{"mail": ANN}])


@mistake("`expand()` over a mapping")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=(ANN, ["bob@example.com"]))


@mistake("one address twice")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=[ANN, "Ann@example.com"])


@mistake("251 recipients")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=[f"person.{letters(number)}@example.com" for number in range(251)])


@mistake("more recipients than the subscription allows")
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(plan="free")
    newcomer.deliver(recipients=[ANN, "bob@example.com"])


@mistake("a message that is too long")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(message="x" * 2_001)


@mistake("a question without an answer")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(security="question", security_question="Which colour?")


@mistake("sms without a phone number")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(security="sms")


@mistake("a security option that is empty")
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(security="")


@mistake("a security option that the account does not have")
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(security_options=["none", "email"])
    newcomer.deliver(security="login")


@mistake("an account without credit")
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(billing="per_transfer", credits=0)
    newcomer.deliver()


@mistake("a sensor that is given nothing")
def _(newcomer: Newcomer) -> None:
    newcomer.wait(None)


@mistake("a sensor with an unknown id")
def _(newcomer: Newcomer) -> None:
    newcomer.wait("tr_unknown")


@mistake("a sensor that waits for a draft")
def _(newcomer: Newcomer) -> None:
    with OutboundTransferHook() as hook:
        draft = hook.create_transfer(build_new_transfer(subject="Report", recipients=ANN))
    newcomer.wait(draft.id)


@mistake("a warehouse that is no SQL database")
def _(newcomer: Newcomer) -> None:
    newcomer.ingest("outbound_transfer_default")


@mistake("a DuckDB file that another program has open")
def _(newcomer: Newcomer) -> None:
    newcomer.monkeypatch.setattr(duckdb, "LOCK_TIMEOUT", 1.0)
    file = newcomer.folder / "warehouse.duckdb"
    newcomer.warehouse(conn_type="duckdb", host=str(file))
    with opened_by_another_program(file):
        newcomer.ingest()


@mistake("`feed` without saying where it is")
def _(newcomer: Newcomer) -> None:
    main(["feed", "status"])


@mistake("`feed status` before the first ingestion")
def _(newcomer: Newcomer) -> None:
    newcomer.warehouse(conn_type="sqlite", host=str(newcomer.folder / "warehouse.db"))
    main(["feed", "status", "--sql-conn-id", "warehouse"])


class Upstream:
    """What a template sees of the task before."""

    def __init__(self, xcom: Any) -> None:
        self.xcom = xcom

    def xcom_pull(self, task_id: str) -> Any:
        return self.xcom


@contextmanager
def opened_by_another_program(file: Path) -> Iterator[None]:
    code = "import duckdb, sys; database = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        try:
            yield
        finally:
            program.communicate(b"\n")


def letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:03}")


@pytest.fixture
def newcomer(
    airflow_database: None, sandbox: Sandbox, connection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Newcomer:
    return Newcomer(sandbox, tmp_path, monkeypatch)


SECTION = (REPOSITORY / "docs/troubleshooting.md").read_text().partition("## A newcomer's mistakes")[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", SECTION.partition("\n## ")[0], re.MULTILINE)[1:]


def test_each_mistake_is_in_the_table() -> None:
    assert [name for name, _ in ROWS] == list(MISTAKES)
    assert len(ROWS) >= 25


@pytest.mark.parametrize(("name", "message"), ROWS, ids=[name for name, _ in ROWS])
def test_a_mistake_says_what_the_table_says(newcomer: Newcomer, name: str, message: str) -> None:
    with pytest.raises((Exception, SystemExit)) as error:
        MISTAKES[name](newcomer)

    said = " ".join(str(error.value).split())
    pattern = ".*".join(map(re.escape, message.replace("`", "").split("…")))
    assert re.fullmatch(pattern, said.replace("`", "")), said
    logged = " ".join("".join(traceback.format_exception(error.value)).split())
    assert logged.count(said) == 1 or isinstance(error.value, SystemExit), "the log has the text once"
    assert newcomer.sandbox.sent() == []
    assert newcomer.clock.now < 5, "it says so within seconds"
    for secret in (newcomer.sandbox.transfer_api_key, newcomer.sandbox.event_api_key):
        assert secret not in said
