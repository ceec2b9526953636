"""What operations see of deliveries in a real Airflow: links, lineage, alerts, second deliveries."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import ManySandboxesStack, running_stack
from support.mail_server import MailServer
from support.repository import REPOSITORY, TESTS
from support.threads import serving
from support.timeouts import eventually

pytestmark = pytest.mark.e2e

FILES = {"a.csv": b"a" * 1_000, "b c.csv": b"b" * 100_000}
RECIPIENTS = ["ann@example.com", "bob@example.com"]
SECRETS = ("obs_", "Bearer", *RECIPIENTS)

DAGS = """
from airflow.sdk import DAG
from outbound_transfer.operators.draft import CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

ARGUMENTS = {{"recipients": {recipients!r}, "files": {glob!r}}}

with DAG("linked", schedule=None):
    deliver = DeliverFilesOperator.partial(
        task_id="deliver", **ARGUMENTS, wait=True, deferrable=True, poke_interval=1,
    ).expand(subject=["one", "two", "three"])

with DAG("told", schedule=None):
    DeliverFilesOperator(
        task_id="deliver", **ARGUMENTS, subject="Report", wait=True, deferrable=True, poke_interval=1
    )

with DAG("failing", schedule=None):
    CreateTransferOperator(task_id="create", subject="Report", recipients=["ann@example.com"]) >> (
        SendTransferOperator(task_id="send", transfer_id="{{{{ ti.xcom_pull('create') }}}}")
    )
"""


class SpanCollector:
    """Keeps the spans that processes export to it by OTLP over HTTP.

    :ivar spans: in the order in which they came.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    spans.extend(span for scope in resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def settings(self) -> dict[str, str]:
        """Environment with which Airflow exports its spans here."""
        return {
            "AIRFLOW__TRACES__OTEL_ON": "True",
            "OTEL_TRACES_EXPORTER": "otlp_proto_http",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }

    def served(self) -> AbstractContextManager[None]:
        return serving(self._server)


#: What the log of a delivery says that met a rate limit and a broken connection, numbers masked.
STORY = """
Found # files (# kB) to deliver
Created draft T for # recipients
Waiting # s to repeat attach: # rate_limited: 'b c.csv': A planned fault. The key's rate limit is exhausted; the call \
is repeated after the delay that the service asks for.
Waiting # s to repeat attach: the connection to URL broke: ReadError [Errno #] Connection reset by peer
Attached b c.csv: # kB in # s
Attached a.csv: # kB in # s
Sending transfer 'T'
Sent transfer T: pending, expires DATE
Done: # files (# kB) to # recipients in # s of attempt #; transfer T, URL/transfers/T
Waiting for transfer T until it finishes, without a worker slot; polling every # s
transfer T is pending: picked up by # of #; not by ann@example.com, bob@example.com
transfer T is complete: picked up by # of #
"""


def masked(line: str, base_url: str) -> str:
    line = re.sub(r"tr_[0-9a-f]+", "T", line.replace(base_url, "URL"))
    line = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)", "DATE", line)
    return re.sub(r" \(# [kM]?B/s\)", "", re.sub(r"\d+(\.\d+)?", "#", line))  # no speed within a tenth of a second


until = partial(eventually, interval=0.5)


class ViewStack(ManySandboxesStack):
    """With the project's Dags and those above, and OpenLineage's events in a file."""

    def start(self) -> None:
        outbox = self.folder / "outbox"
        shutil.rmtree(outbox)
        outbox.mkdir()
        for name, content in FILES.items():
            (outbox / name).write_bytes(content)
        dags = shutil.copytree(REPOSITORY / "dags", self.folder / "dags")
        (dags / "in_view.py").write_text(DAGS.format(recipients=RECIPIENTS, glob=str(outbox / "*.csv")))
        self.mail = MailServer()
        self._open.enter_context(self.mail.served())
        self.collector = SpanCollector()
        self._open.enter_context(self.collector.served())
        super().start()
        self.sandbox = self.sandboxes[0]
        self.sandbox.patch_account(feed_interval_seconds=1)

    def settings(self) -> dict[str, str]:
        transport = {"type": "file", "log_file_path": str(self.folder / "lineage.jsonl"), "append": True}
        return (
            super().settings()
            | self.collector.settings()
            | {
                "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
                "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "60",  # a busy machine needs more than 10 s
                # A fork shares the channel to the task's supervisor, and may hang there.
                "AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD": "True",
                "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
                "OUTBOUND_TRANSFER_OUTBOX": str(self.folder / "outbox"),
                "PYTHONPATH": str(TESTS),
                "OUTBOUND_TRANSFER_POKE_INTERVAL": "1",
            }
        )

    def connections(self) -> dict[str, str]:
        smtp = {
            "conn_type": "smtp",
            "host": "127.0.0.1",
            "port": self.mail.port,
            "extra": {"disable_ssl": True, "disable_tls": True},
        }
        warehouse = {"conn_type": "sqlite", "host": str(self.warehouse)}
        return super().connections() | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandboxes[0].airflow_connection(),
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE": json.dumps(warehouse),
            "AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(smtp),
        }

    def links(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str | None]:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links"
        links: dict[str, str | None] = self.airflow.call("GET", path, map_index=map_index)["extra_links"]
        return links

    def story(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """What a task's log says, of this provider and of HTTP, without its numbers."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/1"
        lines = self.airflow.call("GET", path, full_content=True)["content"]
        ours = [one["event"] for one in lines if re.search("outbound_transfer|http", one.get("logger") or "")]
        return [masked(line, self.sandbox.base_url) for line in ours]

    def states(self, dag_id: str, run_id: str) -> dict[tuple[str, int], str]:
        return {(row["task_id"], row["map_index"]): row["state"] for row in self.airflow.tasks(dag_id, run_id)}

    def run(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """The id of a run that has ended."""
        run_id = self.airflow.trigger(dag_id, conf or {})
        until(lambda: self.state(dag_id, run_id) in ("success", "failed"))
        return run_id

    def state(self, dag_id: str, run_id: str) -> str:
        return str(self.airflow.call("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def lineage(self, dag_id: str, task_id: str, *kinds: str) -> list[dict[str, Any]]:
        """OpenLineage's events of a task that are of ``kinds``."""
        file = self.folder / "lineage.jsonl"
        events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [one for one in events if one["job"]["name"] == f"{dag_id}.{task_id}" and one["eventType"] in kinds]

    def ended_processes(self, run_id: str) -> int:
        """How many processes of a run's tasks the scheduler knows to have ended."""
        log = (self.folder / "logs" / "scheduler.log").read_text()
        return sum("Received executor event" in line and f"run_id='{run_id}'" in line for line in log.splitlines())

    def one_event(self, dag_id: str, task_id: str, kind: str) -> dict[str, Any]:
        (event,) = until(lambda: self.lineage(dag_id, task_id, kind))
        return dict(event)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewStack]:
    with running_stack(tmp_path_factory.mktemp("view") / "stack", Reporter(), 1, kind=ViewStack) as stack:
        stack.wait_for_dags(stack.airflow, "linked", "told", "failing", "deliver_with_deadline", "redeliver_files")
        for paused in ("ingest_event_feed", "process_new_events"):
            stack.airflow.call("PATCH", f"dags/{paused}", {"is_paused": True})
        yield stack


def test_the_link_exists_while_the_task_runs_and_waits_and_after_it_has_ended(stack: ViewStack) -> None:
    sandbox = stack.sandbox
    before = len(sandbox.sent())
    sandbox.plan_faults({"kind": "hold", "method": "POST", "path": "*/send"})
    run_id = stack.airflow.trigger("linked", {})

    def state_of() -> Counter[str]:
        return Counter(stack.states("linked", run_id).values())

    until(lambda: state_of() == {"running": 1, "deferred": 2})
    seen = {index: stack.links("linked", run_id, "deliver", index) for index in range(3)}
    ids = {index: stack.airflow.xcom("linked", run_id, "deliver", index, "transfer_id") for index in range(3)}
    wanted = {index: {"Transfer": f"{sandbox.base_url}/transfers/{ids[index]}"} for index in range(3)}
    assert seen == wanted, "while one of them runs and two are deferred"

    sandbox.release_held_calls()
    # A scheduler that learns of a process's end only when the task is queued again takes the task for failed.
    until(lambda: state_of() == {"deferred": 3} and stack.ended_processes(run_id) == 3)
    assert len(sandbox.sent()) == before + 3
    sandbox.cancel(ids[1])
    for index in (0, 2):
        for recipient in RECIPIENTS:
            sandbox.pickup(ids[index], recipient)
    until(lambda: state_of() == {"success": 2, "failed": 1})
    assert {index: stack.links("linked", run_id, "deliver", index) for index in range(3)} == wanted

    (failed,) = until(lambda: stack.lineage("linked", "deliver", "FAIL"))
    facet = failed["run"]["facets"]["outboundTransfer"]
    assert (facet["transferId"], {file["name"] for file in facet["files"]}) == (ids[1], set(FILES))


def test_the_log_tells_a_delivery_a_line_for_each_step(stack: ViewStack) -> None:
    sandbox = stack.sandbox
    sandbox.plan_faults(
        {"kind": "error", "status": 429, "retry_after": "6", "method": "POST", "path": "*/files"},
        {"kind": "reset", "effect": "after", "method": "POST", "path": "*/files"},
    )
    before = len(sandbox.sent())
    run_id = stack.airflow.trigger("told", {})
    (transfer_id,) = until(lambda: sandbox.sent()[before:])
    until(lambda: stack.states("told", run_id) == {("deliver", -1): "deferred"})
    looks = len(sandbox.requests())
    until(lambda: len(sandbox.requests()) >= looks + 3)  # they show nothing new
    for recipient in RECIPIENTS:
        sandbox.pickup(transfer_id, recipient)
    until(lambda: stack.state("told", run_id) == "success")
    sandbox.assert_all_faults_triggered()

    said = iter(stack.story("told", run_id, "deliver"))
    assert [line for line in STORY.strip().splitlines() if line not in said] == [], "in this order"


def test_a_delivery_is_traced_within_airflows_spans(stack: ViewStack) -> None:
    before = len(stack.sandbox.sent())
    run_id = stack.airflow.trigger("told", {})
    (transfer_id,) = until(lambda: stack.sandbox.sent()[before:])
    for recipient in RECIPIENTS:
        stack.sandbox.pickup(transfer_id, recipient)
    until(lambda: stack.state("told", run_id) == "success")

    def spans(name: str) -> dict[bytes, bytes]:
        """The parents of the spans of that name."""
        return {span.span_id: span.parent_span_id for span in stack.collector.spans if span.name == name}

    until(lambda: spans("outbound_transfer.poll"))  # which the triggerer exports a little later
    uploads = spans("outbound_transfer.upload")
    assert uploads
    until(lambda: set(uploads.values()) <= {each.span_id for each in stack.collector.spans if "worker." in each.name})
    assert set(uploads) <= set(spans("outbound_transfer.attach").values())
    assert set(spans("outbound_transfer.poll").values()) == {b""}
    ours = [str(span) for span in stack.collector.spans if span.name.startswith("outbound_transfer.")]
    print(f"{len(ours)} spans, such as\n{ours[0]}")
    assert [one for one in ours if any(each in one for each in (*SECRETS, *FILES, "Report"))] == []


def test_a_delivery_tells_openlineage_its_files_and_its_transfer(stack: ViewStack) -> None:
    conf = {"files": [str(stack.folder / "outbox" / "*.csv")], "subject": "Report", "recipients": RECIPIENTS}
    run_id = stack.airflow.trigger("deliver_files", {"deliveries": [conf]})
    transfer_id = until(lambda: _pushed(stack, "deliver_files", run_id, "delivery.deliver", 0))
    until(lambda: stack.states("deliver_files", run_id).get(("delivery.wait_for_pickup", 0)) == "deferred")
    assert list(stack.links("deliver_files", run_id, "delivery.wait_for_pickup", 0).values()) == [
        f"{stack.sandbox.base_url}/transfers/{transfer_id}"
    ]
    for recipient in RECIPIENTS:
        stack.sandbox.pickup(transfer_id, recipient)
    until(lambda: stack.state("deliver_files", run_id) == "success")

    event = stack.one_event("deliver_files", "delivery.deliver", "COMPLETE")
    account = stack.sandbox.base_url.removeprefix("http://")
    facet = event["run"]["facets"]["outboundTransfer"]
    assert (facet["transferId"], facet["status"]) == (transfer_id, "pending")
    assert {file["name"]: file["size"] for file in facet["files"]} == {name: len(data) for name, data in FILES.items()}
    assert sorted((each["namespace"], each["name"]) for each in event["inputs"]) == [
        ("file", str(stack.folder / "outbox" / name)) for name in sorted(FILES)
    ]
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [
        (f"outbound-transfer://{account}", "transfers")
    ]
    # Airflow's own facets hold the task's arguments, recipients among them; ours hold none, and nobody a key.
    assert not any(secret in json.dumps([facet, event["inputs"], event["outputs"]]) for secret in SECRETS)


def _pushed(stack: ViewStack, dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    done = stack.states(dag_id, run_id).get((task_id, map_index)) == "success"
    return stack.airflow.xcom(dag_id, run_id, task_id, map_index, "transfer_id") if done else None


def test_a_refused_send_links_to_its_draft(stack: ViewStack) -> None:
    run_id = stack.run("failing")
    draft = stack.airflow.xcom("failing", run_id, "create")

    facet = stack.one_event("failing", "create", "COMPLETE")["run"]["facets"]["outboundTransfer"]
    assert facet["transferId"] == draft
    assert stack.one_event("failing", "send", "FAIL"), (
        "which remembers nothing of another task's draft, so has no facet"
    )
    assert set(stack.links("failing", run_id, "send").values()) == {f"{stack.sandbox.base_url}/transfers/{draft}"}


def test_files_not_collected_by_noon_are_reported_by_email(stack: ViewStack) -> None:
    # Its noon is about to come, when it has delivered.
    moment = datetime.now(UTC) - timedelta(hours=6, seconds=-40)
    body = {"logical_date": moment.isoformat(), "conf": {"files": str(stack.folder / "outbox" / "*.csv")}}
    run_id = stack.airflow.call("POST", "dags/deliver_with_deadline/dagRuns", body)["dag_run_id"]

    # In the afternoon, the day's own run has an alert as well.
    told = until(lambda: [message for message in stack.mail.parsed() if run_id in message.get_content()])
    assert told[0]["Subject"].startswith("Not picked up by noon: Reports of ")
    assert told[0]["To"] == "operations@example.com"
    assert "not picked up by 1 recipient: ann@example.com" in told[0].get_content()
    assert "The run has not finished by its deadline" in told[0].get_content()
    (transfer_id,) = [
        row["transfer_id"]
        for row in stack.sandbox.ledger()
        if row["kind"] == "emailed"
        and row["recipient"] == "ann@example.com"
        and stack.sandbox.transfer(row["transfer_id"])["subject"].startswith("Reports of")
    ]
    stack.sandbox.pickup(transfer_id, "ann@example.com")
    until(lambda: stack.state("deliver_with_deadline", run_id) == "success")
