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


#: What makes each mistake, by its name.
MISTAKES: dict[str, Callable[[Newcomer], object]] = {}

#: What each mistake says; an ellipsis stands for a part that varies.
MESSAGES: dict[str, str] = {}


def mistake(name: str, message: str) -> Callable[[Callable[[Newcomer], object]], Callable[[Newcomer], object]]:
    def add(make: Callable[[Newcomer], object]) -> Callable[[Newcomer], object]:
        MISTAKES[name], MESSAGES[name] = make, message
        return make

    return add


@mistake(
    "a host that does not exist",
    "create: no connection to https://transfers.invalid: ConnectError … Are scheme (http or https), host "
    "and port of the Airflow connection right?",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host="https://transfers.invalid")
    newcomer.deliver()


@mistake(
    "a port where nothing listens",
    "create: no connection to http://127.0.0.1:…: ConnectError … Connection refused. Are scheme (http or "
    "https), host and port of the Airflow connection right?",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host=f"http://127.0.0.1:{free_ports(1)[0]}")
    newcomer.deliver()


@mistake(
    "https for a service that speaks http",
    "create: no connection to https://127.0.0.1:…: ConnectError [SSL: …. Are scheme (http or https), "
    "host and port of the Airflow connection right?",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host=newcomer.sandbox.base_url.replace("http:", "https:"))
    newcomer.deliver()


@mistake(
    "a path in the host",
    "the host must hold no path: give the site's address alone, such as https://account.example.com",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(host=newcomer.sandbox.base_url + "/v1")
    newcomer.deliver()


@mistake(
    "the key in Login instead of Password",
    "the connection's password (the transfer API key) is not set. Enter the key in that field; others are not read",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(login=newcomer.sandbox.transfer_api_key, password="")
    newcomer.deliver()


@mistake(
    "a key that was copied with a line break",
    "the connection's password (the transfer API key) contains characters that no key contains, such as "
    "a space or a line break",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(password=newcomer.sandbox.transfer_api_key + "\n")
    newcomer.deliver()


@mistake(
    "a key that was revoked",
    "401 invalid_api_key: … Check the API key of the Airflow connection: it is missing, malformed, unknown or revoked.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.revoke_key(newcomer.sandbox.transfer_api_key)
    newcomer.deliver()


@mistake(
    "the event key as the transfer key",
    "the connection's password (the transfer API key) is an event key, as it begins with obs_. That one "
    "belongs into the extra field event_api_key; generate a transfer API key for the password",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(password=newcomer.sandbox.event_api_key)
    newcomer.test_connection()


@mistake(
    "no event key for the feed",
    "the connection's extra field event_api_key is not set. Enter the key in that field; others are not read",
)
def _(newcomer: Newcomer) -> None:
    newcomer.connect(extra={})
    newcomer.warehouse(conn_type="sqlite", host=str(newcomer.folder / "warehouse.db"))
    newcomer.ingest()


@mistake(
    "a connection id that does not exist",
    "The conn_id `transfers` isn't defined",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(outbound_transfer_conn_id="transfers")


@mistake(
    "a connection type that does not exist",
    'Unknown hook type "postgre"',
)
def _(newcomer: Newcomer) -> None:
    newcomer.warehouse(conn_type="postgre", host="127.0.0.1")
    newcomer.ingest()


@mistake(
    "a pattern that matches nothing",
    "no file matches '…/*.pdf'. Check the folder on this worker, the pattern, and the task that should "
    "have written the files.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=f"{newcomer.folder}/*.pdf")


@mistake(
    "a file that does not exist",
    "…/raport.csv is not there: … Check the path on this worker, and the task that should have written the file.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=f"{newcomer.folder}/raport.csv")


@mistake(
    "a folder as a file",
    "… is a folder. For the files in it, name a pattern: …/*",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=str(newcomer.folder))


@mistake(
    "files from a task that returned nothing",
    "files is empty: a transfer without files cannot be sent. If it comes from a task, check what that returned.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files="{{ ti.xcom_pull('export') }}")


@mistake(
    "files from a task that returned an empty list",
    "files is empty: a transfer without files cannot be sent. If it comes from a task, check what that returned.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files=[])


@mistake(
    "two files of one name",
    "two files have one name, and the service would keep only the first: report.csv: …; report.csv: …. "
    'Set "name" on one of them.',
)
def _(newcomer: Newcomer) -> None:
    other = newcomer.folder / "north" / "report.csv"
    other.parent.mkdir()
    other.write_text("c,d\n")
    newcomer.deliver(files=[str(newcomer.report), str(other)])


@mistake(
    "a file over the account's limit",
    "413 file_too_large: 'report.csv': … The file is over the account's per-file limit; split it or have "
    "the limit raised.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(per_file_limit_mb=1)
    newcomer.report.write_bytes(bytes(1_100_000))
    newcomer.deliver()


@mistake(
    "a subject from a template without a value",
    "The delivery cannot be made, nothing was created: - subject must not be empty; a template without a value is",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(subject="{{ ti.xcom_pull('export') }}")


@mistake(
    "a file's name from a template without a value",
    "the name of a file must not be empty; a template without a value is. A file with a path keeps its "
    'own name if "name" is left out',
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(files={"path": str(newcomer.report), "name": "{{ ti.xcom_pull('export') }}"})


@mistake(
    "an address that is none",
    "The delivery cannot be made, nothing was created: - recipient 'ann.example.com' is not an address: "
    "An email address must have an @-sign.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=["ann.example.com"])


@mistake(
    "addresses in one text",
    "The delivery cannot be made, nothing was created: - recipient 'ann@example.com, bob@example.com' is "
    "not an address: … Give several addresses as a list.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients="ann@example.com, bob@example.com")


@mistake(
    "a recipient's field that is misspelt",
    "The delivery cannot be made, nothing was created: - recipient 1: has the field 'mail', but may only "
    "have email, name and phone: did you mean 'email'?",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=[{"mail": ANN}])


@mistake(
    "`expand()` over a mapping",
    "The delivery cannot be made, nothing was created: - recipient 2: must be an address or a mapping, "
    "not list. If it comes from expand() over a mapping, which gives each task a key and a value: expand "
    "over a list",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=(ANN, ["bob@example.com"]))


@mistake(
    "one address twice",
    "The delivery cannot be made, nothing was created: - recipient 'ann@example.com' occurs more than "
    "once, and would get one email each time",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=[ANN, "Ann@example.com"])


@mistake(
    "251 recipients",
    "The delivery cannot be made, nothing was created: - recipients must be 1 to 250, not 251: split the delivery",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(recipients=[f"person.{letters(number)}@example.com" for number in range(251)])


@mistake(
    "more recipients than the subscription allows",
    "409 recipient_limit_exceeded: The transfer has 2 recipients; the limit is 1. The subscription "
    "allows fewer recipients per transfer; split the delivery.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(plan="free")
    newcomer.deliver(recipients=[ANN, "bob@example.com"])


@mistake(
    "a message that is too long",
    "The delivery cannot be made, nothing was created: - message has 2,001 characters; 2,000 are allowed",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(message="x" * 2_001)


@mistake(
    "a question without an answer",
    "The delivery cannot be made, nothing was created: - security 'question' needs security_answer",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(security="question", security_question="Which colour?")


@mistake(
    "sms without a phone number",
    "The delivery cannot be made, nothing was created: - security 'sms' needs the phone of ann@example.com",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(security="sms")


@mistake(
    "a security option that is empty",
    "The delivery cannot be made, nothing was created: - security must not be empty: leave it out, or "
    "give None, for the account's default",
)
def _(newcomer: Newcomer) -> None:
    newcomer.deliver(security="")


@mistake(
    "a security option that the account does not have",
    "403 auth_option_not_enabled: … Choose a security option that the account has enabled; the service "
    "never substitutes a weaker one.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(security_options=["none", "email"])
    newcomer.deliver(security="login")


@mistake(
    "an account without credit",
    "403 no_credit: … Buy credit for the account, then clear the task: nothing was sent.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.sandbox.patch_account(billing="per_transfer", credits=0)
    newcomer.deliver()


@mistake(
    "a sensor that is given nothing",
    "transfer_id must be the id of a transfer, or the result of the task that made the delivery, not "
    "None. None usually means that the task pushed no XCom.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.wait(None)


@mistake(
    "a sensor with an unknown id",
    "404 not_found: transfer 'tr_unknown': … The id is unknown, its draft was discarded, or another user "
    "sent it: use the key of the sending user.",
)
def _(newcomer: Newcomer) -> None:
    newcomer.wait("tr_unknown")


@mistake(
    "a sensor that waits for a draft",
    "Timed out waiting: transfer … is draft: … it was never sent, so nobody can pick it up, and the wait "
    "continues. Check that a task of this run sends it. Raise timeout to wait longer.",
)
def _(newcomer: Newcomer) -> None:
    with OutboundTransferHook() as hook:
        draft = hook.create_transfer(build_new_transfer(subject="Report", recipients=ANN))
    newcomer.wait(draft.id)


@mistake(
    "a warehouse that is no SQL database",
    "connection 'outbound_transfer_default' is not a SQL connection (its hook is not a DbApiHook). Name "
    "the connection of a SQL database",
)
def _(newcomer: Newcomer) -> None:
    newcomer.ingest("outbound_transfer_default")


@mistake(
    "a DuckDB file that another program has open",
    "the DuckDB file was in use for … s, by a program that should close it: …",
)
def _(newcomer: Newcomer) -> None:
    newcomer.monkeypatch.setattr(duckdb, "LOCK_TIMEOUT", 1.0)
    file = newcomer.folder / "warehouse.duckdb"
    newcomer.warehouse(conn_type="duckdb", host=str(file))
    with opened_by_another_program(file):
        newcomer.ingest()


@mistake(
    "a DuckDB warehouse in memory",
    "the connection leads to a database of DuckDB in memory, which is lost when the process ends. Set its host to the "
    "path of a file",
)
def _(newcomer: Newcomer) -> None:
    newcomer.warehouse(conn_type="duckdb")
    newcomer.ingest()


@mistake(
    "a DuckDB connection that does not exist",
    "The conn_id `duckdb_default` isn't defined",
)
def _(newcomer: Newcomer) -> None:
    newcomer.ingest("duckdb_default")  # its hook would open a database in memory


@mistake(
    "`feed` without saying where it is",
    "Where is the feed? Exactly one of these says it: --sql-conn-id, --path, --iceberg-conn-id.",
)
def _(newcomer: Newcomer) -> None:
    main(["feed", "status"])


@mistake(
    "`feed status` before the first ingestion",
    "No feed has been read here yet. Run an ingestion first.",
)
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


SECTION = (REPOSITORY / "docs/troubleshooting.md").read_text().partition("## Common errors")[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", SECTION.partition("\n## ")[0], re.MULTILINE)[1:]


def test_the_page_has_the_commonest_mistakes() -> None:
    assert dict(ROWS).items() <= MESSAGES.items()
    assert len(ROWS) == 20


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_what_is_wrong(newcomer: Newcomer, name: str) -> None:
    with pytest.raises((Exception, SystemExit)) as error:
        MISTAKES[name](newcomer)

    said = " ".join(str(error.value).split())
    pattern = ".*".join(map(re.escape, MESSAGES[name].replace("`", "").split("…")))
    assert re.fullmatch(pattern, said.replace("`", "")), said
    logged = " ".join("".join(traceback.format_exception(error.value)).split())
    assert logged.count(said) == 1 or isinstance(error.value, SystemExit), "the log has the text once"
    assert newcomer.sandbox.sent() == []
    assert newcomer.clock.now < 5, "it says so within seconds"
    for secret in (newcomer.sandbox.transfer_api_key, newcomer.sandbox.event_api_key):
        assert secret not in said
