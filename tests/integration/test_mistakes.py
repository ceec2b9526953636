"""A newcomer's mistakes: each is made, and its message compared; docs/troubleshooting.md has the commonest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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
    """Makes mistakes, by the operators, the hook and the commands that a Dag or a terminal would use."""

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
        self.sandbox.patch_account(**changes)
        return self

    def revoke_key(self) -> Newcomer:
        self.sandbox.revoke_key(self.sandbox.transfer_api_key)
        return self

    def warehouse(self, **fields: Any) -> Newcomer:
        """Store a connection `warehouse`; to a file of SQLite, if nothing else is given."""
        fields = fields or {"conn_type": "sqlite", "host": str(self.folder / "warehouse.db")}
        self.monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(fields))
        return self

    def run(self, operator: type, **arguments: Any) -> Any:
        """Run a task once; its templates see an upstream task that has returned nothing."""
        task = operator(task_id="task", **arguments)
        task.render_template_fields({"ti": SimpleNamespace(xcom_pull=lambda task_id: None)})
        return FakeTaskInstance(lambda: task, self.clock).run()

    def deliver(self, **arguments: Any) -> Any:
        given = {"files": str(self.report), "subject": "Report", "recipients": [ANN]} | arguments
        return self.run(DeliverFilesOperator, **given)

    def deliver_two_files_of_one_name(self) -> Any:
        other = self.folder / "north" / "report.csv"
        other.parent.mkdir()
        other.write_text("c,d\n")
        return self.deliver(files=[str(self.report), str(other)])

    def wait(self, transfer_id: Any) -> Any:
        sensor = TransferSensor(task_id="task", transfer_id=transfer_id, poke_interval=1, timeout=1)
        return sensor.execute(FakeTaskInstance(lambda: sensor, self.clock, try_number=1).context())

    def ingest(self, sql_conn_id: str = "warehouse") -> Any:
        return self.run(EventFeedToSqlOperator, sql_conn_id=sql_conn_id)

    def ingest_into_an_open_file(self) -> Any:
        self.monkeypatch.setitem(engine._TIMEOUTS, "duckdb", 1.0)
        file = self.folder / "warehouse.duckdb"
        opened = "import duckdb, sys; database = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", opened, file], stdin=pipe, stdout=pipe) as program:
            program.stdout.readline()
            try:
                return self.warehouse(conn_type="duckdb", host=str(file)).ingest()
            finally:
                program.communicate(b"\n")

    def test_connection(self) -> None:
        """Press *Test*, which shows a message instead of raising it."""
        is_right, message = OutboundTransferHook().test_connection()
        assert not is_right
        raise ValueError(message)


#: What makes each mistake.
MAKES: dict[str, Callable[[Newcomer], object]] = {
    "a host that does not exist": lambda user: user.connect(host="https://transfers.invalid").deliver(),
    "a path in the host": lambda user: user.connect(host=user.sandbox.base_url + "/v1").deliver(),
    "the key in Login instead of Password": lambda user: user.connect(
        login=user.sandbox.transfer_api_key, password=""
    ).deliver(),
    "a key that was revoked": lambda user: user.revoke_key().deliver(),
    "the event key as the transfer key": lambda user: user.connect(
        password=user.sandbox.event_api_key
    ).test_connection(),
    "no event key for the feed": lambda user: user.connect(extra={}).warehouse().ingest(),
    "a connection id that does not exist": lambda user: user.deliver(outbound_transfer_conn_id="transfers"),
    "a connection type that does not exist": lambda user: user.warehouse(
        conn_type="postgre", host="127.0.0.1"
    ).ingest(),
    "a pattern that matches nothing": lambda user: user.deliver(files=f"{user.folder}/*.pdf"),
    "a file that does not exist": lambda user: user.deliver(files=f"{user.folder}/raport.csv"),
    "a folder as a file": lambda user: user.deliver(files=str(user.folder)),
    "files from a task that returned nothing": lambda user: user.deliver(files="{{ ti.xcom_pull('export') }}"),
    "two files with the same name": Newcomer.deliver_two_files_of_one_name,
    "a file over the account's limit": lambda user: user.account(per_file_limit_mb=1).deliver(
        files={"name": "report.csv", "content": bytes(1_100_000)}
    ),
    "a subject from a template without a value": lambda user: user.deliver(subject="{{ ti.xcom_pull('export') }}"),
    "several addresses in one string": lambda user: user.deliver(recipients="ann@example.com, bob@example.com"),
    "one address twice": lambda user: user.deliver(recipients=[ANN, "Ann@example.com"]),
    "a security option that the account does not have": lambda user: user.account(
        security_options=["none", "email"]
    ).deliver(security="login"),
    "an account without credit": lambda user: user.account(billing="per_transfer", credits=0).deliver(),
    "a sensor with an unknown id": lambda user: user.wait("tr_unknown"),
    "a DuckDB file that another program has open": Newcomer.ingest_into_an_open_file,
    "a DuckDB warehouse in memory": lambda user: user.warehouse(conn_type="duckdb").ingest(),
    "`feed` without saying where it is": lambda user: main(["feed", "status"]),
    "`feed status` before the first ingestion": lambda user: (
        user.warehouse() and main(["feed", "status", "--sql-conn-id", "warehouse"])
    ),
}

#: What each says; an ellipsis stands for a part that varies.
SAID = """
a host that does not exist: create: no connection to https://transfers.invalid: ConnectError … Check the scheme
   (http or https), host and port of the Airflow connection.
a path in the host: the host must not contain a path: give the site's address alone, such as https://account.example.com
the key in Login instead of Password: the connection's password (the transfer API key) is not set. Enter the key in
   that field; no other field is read
a key that was revoked: 401 invalid_api_key: … Check the API key of the Airflow connection: it is missing, malformed,
   unknown or revoked.
the event key as the transfer key: the connection's password (the transfer API key) is an event key, as it begins
   with obs_. Put it in the extra field event_api_key instead; generate a transfer API key for the password
no event key for the feed: the connection's extra field event_api_key is not set. Enter the key in that field; no
   other field is read
a connection id that does not exist: The conn_id `transfers` isn't defined
a connection type that does not exist: Unknown hook type "postgre"
a pattern that matches nothing: no file matches '…/*.pdf'. Check the folder on this worker, the pattern, and the task
   that should have written the files.
a file that does not exist: …/raport.csv does not exist: … Check the path on this worker (absolute; ~ is not expanded),
   and the task that should have written the file.
a folder as a file: … is a folder. For the files in it, use a pattern: …/*
files from a task that returned nothing: files is empty: a transfer without files cannot be sent. If it comes from a
   task, check what it returned.
two files with the same name: two files have the same name, 'report.csv', and the service would keep only the first: …;
   …. Set "name" on one of them; …
a file over the account's limit: 413 file_too_large: 'report.csv': … The file is over the account's per-file limit;
   split it or have the limit raised.
a subject from a template without a value: The delivery is invalid, so nothing was created: - subject must not be
   empty; check whether its template has a value
several addresses in one string: The delivery is invalid, so nothing was created: - recipient 'ann@example.com,
   bob@example.com' is not an address: … Give several addresses as a list.
one address twice: The delivery is invalid, so nothing was created: - recipient 'ann@example.com' occurs more than
   once, and would get one email each time
a security option that the account does not have: 403 auth_option_not_enabled: … Choose a security option that the
   account has enabled; the service never substitutes a weaker one.
an account without credit: 403 no_credit: … Buy credit for the account, then clear the task; nothing was sent.
a sensor with an unknown id: 404 not_found: transfer 'tr_unknown': … The id is unknown, its draft was discarded, or
   another user sent it; use the sending user's key.
a DuckDB file that another program has open: the DuckDB file was in use for … s, by a program that should close it: …
a DuckDB warehouse in memory: The connection does not lead to a DuckDB file: set its host to the path of one. A
   database in memory is lost when the process ends
`feed` without saying where it is: Where is the feed? Give exactly one of --sql-conn-id and --iceberg-conn-id.
`feed status` before the first ingestion: No feed has been read here yet. Run an ingestion first.
"""
SAYS = {name: " ".join(said.split()) for name, said in re.findall(r"^(\S[^:]*): (.+(?:\n .+)*)", SAID, re.MULTILINE)}


@pytest.fixture
def newcomer(airflow_database, sandbox, connection, tmp_path, monkeypatch) -> Newcomer:
    return Newcomer(sandbox, tmp_path, monkeypatch)


SECTION = (REPOSITORY / "docs/troubleshooting.md").read_text().partition("## Common errors")[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", SECTION.partition("\n## ")[0], re.MULTILINE)[1:]


def pattern_of(message: str) -> str:
    return ".*".join(map(re.escape, message.replace("`", "").split("…")))


def test_the_page_has_the_commonest_mistakes() -> None:
    assert SAYS.keys() == MAKES.keys()
    differ = [name for name, said in ROWS if not re.fullmatch(pattern_of(said), SAYS[name].replace("`", ""))]
    assert differ == []
    assert len(ROWS) == 20


@pytest.mark.parametrize("name", MAKES)
def test_a_mistake_says_what_is_wrong(newcomer, name) -> None:
    with pytest.raises((Exception, SystemExit)) as error:
        MAKES[name](newcomer)
    said = " ".join(str(error.value).split())
    assert re.fullmatch(pattern_of(SAYS[name]), said.replace("`", "")), said
    logged = " ".join("".join(traceback.format_exception(error.value)).split())
    assert logged.count(said) == 1 or isinstance(error.value, SystemExit), "the log has the text once"
    assert newcomer.sandbox.sent() == []
    assert newcomer.clock.now <= 6, "it says so within seconds: two waits, of at most 2 and 4 s"
    for secret in (newcomer.sandbox.transfer_api_key, newcomer.sandbox.event_api_key):
        assert secret not in said
