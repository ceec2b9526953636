"""A newcomer's mistakes: each is made, and its message compared; docs/troubleshooting.md has the commonest."""

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
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.store import engine
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer_sandbox.testing import Sandbox
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

    def connect(self, **fields: Any) -> Newcomer:
        """Store a connection; what is not given is right."""
        right = json.loads(self.sandbox.airflow_connection())
        self.monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(right | fields))
        return self

    def account(self, **changes: Any) -> Newcomer:
        """Change the account at the service."""
        self.sandbox.patch_account(**changes)
        return self

    def revoke_key(self) -> Newcomer:
        self.sandbox.revoke_key(self.sandbox.transfer_api_key)
        return self

    def warehouse(self, **fields: Any) -> Newcomer:
        """Store a connection `warehouse`."""
        self.monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(fields))
        return self

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


def deliver_two_files_of_one_name(newcomer: Newcomer) -> None:
    other = newcomer.folder / "north" / "report.csv"
    other.parent.mkdir()
    other.write_text("c,d\n")
    newcomer.deliver(files=[str(newcomer.report), str(other)])


def ingest_into_an_open_file(newcomer: Newcomer) -> None:
    newcomer.monkeypatch.setitem(engine._TIMEOUTS, "duckdb", 1.0)
    file = newcomer.folder / "warehouse.duckdb"
    with opened_by_another_program(file):
        newcomer.warehouse(conn_type="duckdb", host=str(file)).ingest()


def show_the_status_of_no_feed(newcomer: Newcomer) -> None:
    newcomer.warehouse(conn_type="sqlite", host=str(newcomer.folder / "warehouse.db"))
    main(["feed", "status", "--sql-conn-id", "warehouse"])


NOTHING_CREATED = "The delivery cannot be made, nothing was created: -"

#: What makes each mistake, and what it says; an ellipsis stands for a part that varies.
MISTAKES: dict[str, tuple[Callable[[Newcomer], object], str]] = {
    "a host that does not exist": (
        lambda newcomer: newcomer.connect(host="https://transfers.invalid").deliver(),
        "create: no connection to https://transfers.invalid: ConnectError … Are scheme (http or https), host and "
        "port of the Airflow connection right?",
    ),
    "a path in the host": (
        lambda newcomer: newcomer.connect(host=newcomer.sandbox.base_url + "/v1").deliver(),
        "the host must hold no path: give the site's address alone, such as https://account.example.com",
    ),
    "the key in Login instead of Password": (
        lambda newcomer: newcomer.connect(login=newcomer.sandbox.transfer_api_key, password="").deliver(),
        "the connection's password (the transfer API key) is not set. Enter the key in that field; others are not read",
    ),
    "a key that was revoked": (
        lambda newcomer: newcomer.revoke_key().deliver(),
        "401 invalid_api_key: … Check the API key of the Airflow connection: it is missing, malformed, unknown or"
        " revoked.",
    ),
    "the event key as the transfer key": (
        lambda newcomer: newcomer.connect(password=newcomer.sandbox.event_api_key).test_connection(),
        "the connection's password (the transfer API key) is an event key, as it begins with obs_. Put it in "
        "the extra field event_api_key instead; generate a transfer API key for the password",
    ),
    "no event key for the feed": (
        lambda newcomer: (
            newcomer.connect(extra={})
            .warehouse(conn_type="sqlite", host=str(newcomer.folder / "warehouse.db"))
            .ingest()
        ),
        "the connection's extra field event_api_key is not set. Enter the key in that field; others are not read",
    ),
    "a connection id that does not exist": (
        lambda newcomer: newcomer.deliver(outbound_transfer_conn_id="transfers"),
        "The conn_id `transfers` isn't defined",
    ),
    "a connection type that does not exist": (
        lambda newcomer: newcomer.warehouse(conn_type="postgre", host="127.0.0.1").ingest(),
        'Unknown hook type "postgre"',
    ),
    "a pattern that matches nothing": (
        lambda newcomer: newcomer.deliver(files=f"{newcomer.folder}/*.pdf"),
        "no file matches '…/*.pdf'. Check the folder on this worker, the pattern, and the task that should have "
        "written the files.",
    ),
    "a file that does not exist": (
        lambda newcomer: newcomer.deliver(files=f"{newcomer.folder}/raport.csv"),
        "…/raport.csv is not there: … Check the path on this worker (absolute; ~ is not expanded), and the task that "
        "should have written the file.",
    ),
    "a folder as a file": (
        lambda newcomer: newcomer.deliver(files=str(newcomer.folder)),
        "… is a folder. For the files in it, name a pattern: …/*",
    ),
    "files from a task that returned nothing": (
        lambda newcomer: newcomer.deliver(files="{{ ti.xcom_pull('export') }}"),
        "files is empty: a transfer without files cannot be sent. If it comes from a task, check what that returned.",
    ),
    "two files of one name": (
        deliver_two_files_of_one_name,
        "two files have one name, 'report.csv', and the service would keep only the first: …; …. Set "
        '"name" on one of them; …',
    ),
    "a file over the account's limit": (
        lambda newcomer: newcomer.account(per_file_limit_mb=1).deliver(
            files={"name": "report.csv", "content": bytes(1_100_000)}
        ),
        "413 file_too_large: 'report.csv': … The file is over the account's per-file limit; split it or have the "
        "limit raised.",
    ),
    "a subject from a template without a value": (
        lambda newcomer: newcomer.deliver(subject="{{ ti.xcom_pull('export') }}"),
        f"{NOTHING_CREATED} subject must not be empty; a template without a value is",
    ),
    "addresses in one text": (
        lambda newcomer: newcomer.deliver(recipients="ann@example.com, bob@example.com"),
        f"{NOTHING_CREATED} recipient 'ann@example.com, bob@example.com' is not an address: … Give several "
        "addresses as a list.",
    ),
    "one address twice": (
        lambda newcomer: newcomer.deliver(recipients=[ANN, "Ann@example.com"]),
        f"{NOTHING_CREATED} recipient 'ann@example.com' occurs more than once, and would get one email each time",
    ),
    "a security option that the account does not have": (
        lambda newcomer: newcomer.account(security_options=["none", "email"]).deliver(security="login"),
        "403 auth_option_not_enabled: … Choose a security option that the account has enabled; the service never "
        "substitutes a weaker one.",
    ),
    "an account without credit": (
        lambda newcomer: newcomer.account(billing="per_transfer", credits=0).deliver(),
        "403 no_credit: … Buy credit for the account, then clear the task: nothing was sent.",
    ),
    "a sensor with an unknown id": (
        lambda newcomer: newcomer.wait("tr_unknown"),
        "404 not_found: transfer 'tr_unknown': … The id is unknown, its draft was discarded, or another user sent"
        " it: use the key of the sending user.",
    ),
    "a DuckDB file that another program has open": (
        ingest_into_an_open_file,
        "the DuckDB file was in use for … s, by a program that should close it: …",
    ),
    "a DuckDB warehouse in memory": (
        lambda newcomer: newcomer.warehouse(conn_type="duckdb").ingest(),
        "The connection leads to no file of DuckDB: set its host to the path of one. A database in memory is lost when "
        "the process ends",
    ),
    "`feed` without saying where it is": (
        lambda newcomer: main(["feed", "status"]),
        "Where is the feed? Exactly one of these says it: --sql-conn-id, --iceberg-conn-id.",
    ),
    "`feed status` before the first ingestion": (
        show_the_status_of_no_feed,
        "No feed has been read here yet. Run an ingestion first.",
    ),
}


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


@pytest.fixture
def newcomer(
    airflow_database: None, sandbox: Sandbox, connection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Newcomer:
    return Newcomer(sandbox, tmp_path, monkeypatch)


SECTION = (REPOSITORY / "docs/troubleshooting.md").read_text().partition("## Common errors")[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", SECTION.partition("\n## ")[0], re.MULTILINE)[1:]


def pattern_of(message: str) -> str:
    return ".*".join(map(re.escape, message.replace("`", "").split("…")))


def test_the_page_has_the_commonest_mistakes() -> None:
    differ = [name for name, said in ROWS if not re.fullmatch(pattern_of(said), MISTAKES[name][1].replace("`", ""))]
    assert differ == []
    assert len(ROWS) == 20


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_what_is_wrong(newcomer: Newcomer, name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises((Exception, SystemExit)) as error:
        make(newcomer)
    said = " ".join(str(error.value).split())
    assert re.fullmatch(pattern_of(message), said.replace("`", "")), said
    logged = " ".join("".join(traceback.format_exception(error.value)).split())
    assert logged.count(said) == 1 or isinstance(error.value, SystemExit), "the log has the text once"
    assert newcomer.sandbox.sent() == []
    assert newcomer.clock.now <= 6, "it says so within seconds: two waits, of at most 2 and 4 s"
    for secret in (newcomer.sandbox.transfer_api_key, newcomer.sandbox.event_api_key):
        assert secret not in said
