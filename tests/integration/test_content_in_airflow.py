"""Contents through Airflow: templates, XComs, mapping, what its database and logs hold; and ``@task.deliver_files``."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

TEMPLATES = """
    from functools import partial
    from pathlib import Path
    from airflow.sdk import DAG, task
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from support.provider import ContentWriter

    def same(text):
        return text

    def write(text, file):
        file.write(text.encode())

    with DAG("contents", schedule=None, params={{"what": "total"}}, render_template_as_native_obj={native}):
        @task
        def text():
            return "hush-{{{{ params.what }}}} /etc/hostname.sql"

        @task
        def specs():
            return [{{"name": "listed.txt", "content": "hush-{{{{ params.what }}}}"}}]

        given = {{"subject": "Report", "recipients": ["ann@example.com"]}}
        DeliverFilesOperator.partial(task_id="mapped", **given).expand(files=specs())
        DeliverFilesOperator(task_id="deliver", **given, files=[
            {{"name": "rendered.txt", "content": "hush {{{{ params.what }}}}"}},
            {{"name": "xcom.txt", "content": text()}},
            {{"name": "bytes.bin", "content": b"hush\\x00\\xff{{{{ params.what }}}}"}},
            {{"name": "literal.csv", "content": "\\"hush\\"\\r\\n1,2\\r\\n"}},
        ])
        DeliverFilesOperator.partial(task_id="forms", recipients=["ann@example.com"], files=[
            {{"name": "lambda", "content": lambda: "hush"}},
            {{"name": "partial", "content": partial(same, "hush")}},
            {{"name": "method", "content": Path({path!r}).read_bytes}},
            {{"name": "writer", "content": ContentWriter(partial(write, "hush"))}},
        ]).expand(subject=["one", "two"])
"""


def stored(sandbox, transfer: Any) -> dict[str, bytes]:
    return {file["name"]: sandbox.stored_content(transfer["id"], file["id"]) for file in transfer["files"]}


def rendered_fields(run, task_id: str) -> str:
    address = os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(address)) as database:
        query = "SELECT rendered_fields FROM rendered_task_instance_fields WHERE run_id = ? AND task_id = ?"
        return str(database.execute(query, (run.dag_run.run_id, task_id)).fetchall())


@pytest.mark.parametrize("native", [False, True])
def test_only_text_of_the_dag_file_is_a_template(run_dag, connection, sandbox, tmp_path: Path, native) -> None:
    (tmp_path / "file").write_text("hush")
    run = run_dag(TEMPLATES.format(native=native, path=str(tmp_path / "file")))
    assert set(run.states().values()) == {"success"}
    assert stored(sandbox, run.xcom("deliver")) == {
        "rendered.txt": b"hush total",
        "xcom.txt": b"hush-{{ params.what }} /etc/hostname.sql",
        "bytes.bin": b"hush\x00\xff{{ params.what }}",
        "literal.csv": b'"hush"\r\n1,2\r\n',
    }
    assert stored(sandbox, run.xcom("mapped", map_index=0)) == {"listed.txt": b"hush-{{ params.what }}"}
    for index in (0, 1):
        files = stored(sandbox, run.xcom("forms", map_index=index))
        assert files == dict.fromkeys(["lambda", "partial", "method", "writer"], b"hush")
    assert rendered_fields(run, "deliver").count("<content>") == 4
    assert "hush" not in "".join(rendered_fields(run, task_id) for task_id in ("deliver", "mapped", "forms"))


EXPANDED_KWARGS = """
    from airflow.sdk import DAG, task
    from outbound_transfer.operators.draft import CreateTransferOperator
    from outbound_transfer.operators.transfer import DeliverFilesOperator

    SECRET = "{{ conn.outbound_transfer_default.password }}"

    with DAG("expanded_kwargs", schedule=None, params={"who": "Ann"}):
        @task
        def deliveries():
            file = {"name": "a.csv", "content": SECRET}
            return [{"files": file, "message": SECRET, "recipients": [{"email": "ann@example.com", "name": SECRET}]}]

        @task
        def one():
            return {"files": {"name": "a.csv", "content": SECRET}, "message": SECRET, "recipients": "ann@example.com"}

        partial = DeliverFilesOperator.partial
        partial(task_id="all", subject="For {{ params.who }}").expand_kwargs(deliveries())
        partial(task_id="changed", subject="Also for {{ params.who }}").expand_kwargs(
            deliveries().map(lambda each: each)
        )
        partial(task_id="each", subject="Only for {{ params.who }}").expand_kwargs([one()])
        partial(task_id="literal", recipients=["ann@example.com"]).expand_kwargs(
            [{"files": {"name": "a.csv", "content": "a"}, "subject": "For {{ params.who }}"}]
        )
"""


def test_values_returned_for_expand_kwargs_are_not_rendered(run_dag, connection, sandbox) -> None:
    run = run_dag(EXPANDED_KWARGS)
    assert set(run.states().values()) == {"success"}
    secret = "{{ conn.outbound_transfer_default.password }}"
    for task_id, subject in {"all": "For Ann", "changed": "Also for Ann", "each": "Only for Ann"}.items():
        transfer = run.xcom(task_id, map_index=0)
        assert (transfer["subject"], transfer["message"]) == (subject, secret)
        assert stored(sandbox, transfer) == {"a.csv": secret.encode()}
    assert run.xcom("literal", map_index=0)["subject"] == "For Ann"
