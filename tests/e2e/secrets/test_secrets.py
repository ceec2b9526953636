"""Keys, answers and phone numbers come out nowhere: a real Airflow at DEBUG, with OpenLineage, is searched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from e2e.secrets.scan import Haystack, PlantedSecret, found, tables
from e2e.secrets.stack import LINEAGE, SecretsStack, refuse_and_quote, send_the_key_back
from support.airflow_stack.console import Reporter, tail
from support.airflow_stack.many_sandboxes import running_stack
from support.raw_server import serving

pytestmark = pytest.mark.e2e

DONE = {"success", "failed", "skipped", "upstream_failed"}
FAILED = (
    *("refused", "refused_sms", "forbidden", "malformed", "gone", "template_cut", "template_fails", "quoted"),
    *("quoted_sms", "no_http", "feed_no_http", "wait_no_http", "feed_refused"),
)
SUCCEEDED = (
    *("question", "question_deferred", "sms", "sms_deferred", "mapped", "unclear", "unclear_sms", "retried"),
    *("template", "template_json", "create", "attach", "send", "wait", "discard", "events", "transfers"),
)
ENDS = dict.fromkeys(FAILED, "failed") | dict.fromkeys(SUCCEEDED, "success")
WAITING = {"question_deferred", "sms_deferred", "wait"}

#: What must be found, to show that the search would have found the canaries.
PLANTED = PlantedSecret("planted", "planted-4c41")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[SecretsStack]:
    with ExitStack() as running:
        mirror, no_http = (running.enter_context(serving(does)).url() for does in (refuse_and_quote, send_the_key_back))
        kind = partial(SecretsStack, mirror=mirror, no_http=no_http)
        stack = running.enter_context(running_stack(tmp_path / "stack", Reporter(), 4, kind=kind))
        for sandbox in stack.sandboxes:
            sandbox.patch_account(requests_per_window=600)
        _, unclear, unclear_sms, forbidden = stack.sandboxes
        unclear.plan_faults({"kind": "reset", "path": "*/send", "effect": "after"})
        unclear_sms.plan_faults({"kind": "error", "status": 502, "path": "*/send", "effect": "after"})
        forbidden.plan_faults(
            {"kind": "error", "status": 403, "code": "auth_option_not_enabled", "path": "/v1/transfers"}
        )
        stack.wait_for_dags(stack.airflow, "canary")
        yield stack


def test_no_canary_is_heard(stack: SecretsStack) -> None:
    plant(stack)
    stack.airflow.trigger("canary", {})
    wait_until(lambda: states(stack, "deferred") >= WAITING, stack)
    waiting = list(tables(stack.database))
    wait_until(lambda: pick_up(stack) or len(states(stack, *DONE)) == len(ENDS), stack)

    ended = {task["task_id"]: task["state"] for task in stack.tasks()}
    assert ended == ENDS, logs(stack, {name for name in ENDS if ended.get(name) != ENDS[name]})
    for sandbox in stack.sandboxes:
        sandbox.assert_all_faults_triggered()
    places = list(stack.places())
    assert_searched(stack, waiting, places)
    assert found(stack.canaries(), [*waiting, *places]) == []


def plant(stack: SecretsStack) -> None:
    (stack.folder / "airflow" / "logs" / "planted.log").write_text(f"DEBUG {PLANTED.value}")
    (stack.folder / "logs" / "planted.log").write_text(f"?q={PLANTED.value}")
    with closing(stack.database.connect(autocommit=True)) as connection:
        connection.execute("CREATE TABLE planted (text text)")
        connection.execute("INSERT INTO planted VALUES (%s)", [PLANTED.value])
    with closing(stack.warehouse_database.connect(autocommit=True)) as connection:
        connection.execute("CREATE TABLE planted (bytes bytea)")
        connection.execute("INSERT INTO planted VALUES (%s)", [PLANTED.value.encode()])


def assert_searched(stack: SecretsStack, waiting: list[Haystack], places: list[Haystack]) -> None:
    """The search finds what was planted, and the places hold what they are searched for."""
    assert found([PLANTED], places) == [
        "planted in airflow/logs/planted.log",
        "planted in logs/planted.log",
        "planted in postgres public.planted",
        "planted in warehouse public.planted",
    ]
    content = {place.name: place.content for place in places}
    (transfer_id,) = {row["transfer_id"] for row in stack.sandboxes[1].ledger()}
    for name in ("postgres public.xcom", "postgres public.rendered_task_instance_fields"):
        assert content[name], f"{name} is empty"
    for name in ("events", "transfers", "recipients", "deliveries"):
        assert content[f"warehouse public.outbound_transfer_{name}"], f"{name} is empty"
    assert any(name.startswith("GET /outbound-transfer/task") for name in content)
    assert transfer_id.encode() in content["postgres public.xcom"]
    assert b"***" in content["postgres public.rendered_task_instance_fields"]
    (triggers,) = (place.content for place in waiting if place.name == "postgres public.trigger")
    assert b"poke_interval" in triggers
    assert b"COMPLETE" in content[f"airflow/{LINEAGE}"]
    logs = b"".join(text for name, text in content.items() if "/task_id=" in name)
    assert b'"level":"debug"' in logs
    assert b"401 invalid_api_key" in logs
    assert b"400 ***: Not ***, not" in logs
    # httpcore logs the headers of a response, and what is no HTTP; the key is masked in the logs of tasks and triggers.
    for task_id, heard in (
        ("quoted", b"(b'X-Echo', b'Bearer ***')"),
        ("no_http", b"illegal status line: bytearray(b'Authorization: Bearer ***')"),
        ("wait_no_http", b"illegal status line: bytearray(b'Authorization: Bearer ***')"),
    ):
        assert heard in b"".join(text for name, text in content.items() if f"/task_id={task_id}/" in name), task_id
    assert [name for name in content if name.startswith("GET") and not name.endswith((" 200", " 403"))] == []


def logs(stack: SecretsStack, task_ids: set[str]) -> str:
    """The ends of the logs of tasks, to learn why they ended as they did."""
    folders = (folder for name in task_ids for folder in stack.airflow_logs.rglob(f"task_id={name}"))
    return "\n".join(line for folder in folders for line in [str(folder), *tail(folder)[1]])


def states(stack: SecretsStack, *wanted: str) -> set[str]:
    return {task["task_id"] for task in stack.tasks() if task["state"] in wanted}


def pick_up(stack: SecretsStack) -> None:
    for sandbox in stack.sandboxes:
        for row in sandbox.ledger():
            if row["kind"] == "emailed":
                sandbox.pickup(row["transfer_id"], row["recipient"])


def wait_until(is_so: Callable[[], bool], stack: SecretsStack) -> None:
    deadline = time.monotonic() + 480
    while not is_so():
        told = {task["task_id"]: task["state"] for task in stack.tasks()}
        assert time.monotonic() < deadline, told
        time.sleep(1)
