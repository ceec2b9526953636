"""Contents through Airflow: templates, XComs, mapping, what its database and logs hold; and ``@task.deliver_files``."""

from __future__ import annotations

import io
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

TEMPLATES = """
    from airflow.sdk import DAG, task
    from outbound_transfer.operators.transfer import DeliverFilesOperator

    with DAG("contents", schedule=None, params={{"what": "total"}}, render_template_as_native_obj={native}):
        @task
        def text():
            return "hush-{{{{ params.what }}}} /etc/hostname.sql"

        @task
        def specs():
            return [{{"name": "listed.txt", "content": "hush-{{{{ params.what }}}}"}}]

        DeliverFilesOperator.partial(
            task_id="mapped", subject="Report", recipients=["ann@example.com"]
        ).expand(files=specs())
        DeliverFilesOperator(
            task_id="deliver", subject="Report", recipients=["ann@example.com"], files=[
                {{"name": "rendered.txt", "content": "hush {{{{ params.what }}}}"}},
                {{"name": "xcom.txt", "content": text()}},
                {{"name": "bytes.bin", "content": b"hush\\x00\\xff{{{{ params.what }}}}"}},
                {{"name": "called.txt", "content": lambda: "hush"}},
                {{"name": "literal.csv", "content": "\\"hush\\"\\r\\n1,2\\r\\n"}},
            ],
        )
"""


def stored(sandbox, transfer: Any) -> dict[str, bytes]:
    return {file["name"]: sandbox.stored_content(transfer["id"], file["id"]) for file in transfer["files"]}


@pytest.mark.parametrize("native", [False, True])
def test_only_text_of_the_dag_file_is_a_template(run_dag, connection, sandbox, native) -> None:
    run = run_dag(TEMPLATES.format(native=native))
    assert run.states() == dict.fromkeys(["text", "specs", "mapped[0]", "deliver"], "success")
    assert stored(sandbox, run.xcom("deliver")) == {
        "rendered.txt": b"hush total",
        "xcom.txt": b"hush-{{ params.what }} /etc/hostname.sql",
        "bytes.bin": b"hush\x00\xff{{ params.what }}",
        "called.txt": b"hush",
        "literal.csv": b'"hush"\r\n1,2\r\n',
    }
    assert stored(sandbox, run.xcom("mapped", map_index=0)) == {"listed.txt": b"hush-{{ params.what }}"}
    rendered = rendered_fields(run, "deliver")
    assert rendered.count("<content>") == 5
    assert "hush" not in rendered + rendered_fields(run, "mapped")


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


def test_what_a_task_returned_for_expand_kwargs_is_no_template(run_dag, connection, sandbox) -> None:
    run = run_dag(EXPANDED_KWARGS)
    assert set(run.states().values()) == {"success"}
    secret = "{{ conn.outbound_transfer_default.password }}"
    for task_id, subject in {"all": "For Ann", "changed": "Also for Ann", "each": "Only for Ann"}.items():
        transfer = run.xcom(task_id, map_index=0)
        assert (transfer["subject"], transfer["message"]) == (subject, secret)
        assert stored(sandbox, transfer) == {"a.csv": secret.encode()}
    assert run.xcom("literal", map_index=0)["subject"] == "For Ann"


def rendered_fields(run, task_id: str) -> str:
    """The rendered fields of the last run, as Airflow's database has them."""
    address = os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(address)) as database:
        query = "SELECT rendered_fields FROM rendered_task_instance_fields WHERE run_id = ? AND task_id = ?"
        return str(database.execute(query, (run.dag_run.run_id, task_id)).fetchall())


PARTIAL = """
    import io
    from functools import partial
    from pathlib import Path
    from airflow.sdk import DAG
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from support.provider import ContentWriter

    def same(text):
        return text

    def write(text, file):
        file.write(text.encode())

    with DAG("partial", schedule=None):
        DeliverFilesOperator.partial(
            task_id="deliver", recipients=["ann@example.com"], files=[
                {{"name": "lambda", "content": lambda: "hush"}},
                {{"name": "partial", "content": partial(same, "hush")}},
                {{"name": "method", "content": Path({path!r}).read_bytes}},
                {{"name": "writer", "content": ContentWriter(partial(write, "hush"))}},
                {{"name": "bytes", "content": b"hush"}},
            ]
        ).expand(subject=["one", "two"])
"""


def test_a_mapped_task_may_have_contents_of_every_form(run_dag, connection, sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hush")
    run = run_dag(PARTIAL.format(path=str(tmp_path / "file")))
    assert set(run.states().values()) == {"success"}
    for index in (0, 1):
        files = stored(sandbox, run.xcom("deliver", map_index=index))
        assert (len(files), set(files.values())) == (5, {b"hush"})
    assert "hush" not in rendered_fields(run, "deliver")


DECORATED = """
    from airflow.sdk import DAG, task
    from airflow.sdk.exceptions import AirflowSkipException

    with DAG("decorated", schedule=None):
        @task
        def customers():
            return [{{"email": "ann@example.com", "rows": 2}}, {{"email": "bob@example.com", "rows": 0}}]

        @task.deliver_files(subject="Statement of {{{{ ds_nodash or '' }}}}", archive="statements.zip")
        def statements(customer, ti, run_id=None) -> dict:
            assert run_id and ti.map_index >= 0
            if not customer["rows"]:
                raise AirflowSkipException("nothing to deliver")
            return {{
                "files": [
                    {{"name": "a.txt", "content": "{{{{ ds }}}} hush"}},
                    {{"name": "b.csv", "content": lambda: b"x" * customer["rows"]}},
                    {file!r},
                ],
                "recipients": [{{"email": customer["email"], "name": "N", "phone": "+44 7700 900123"}}],
                "security": "sms",
            }}

        @task.deliver_files(subject="Report", recipients=["ann@example.com"])
        def one_path():
            return {file!r}

        @task.deliver_files(subject="Report", recipients=["ann@example.com"])
        def one_content():
            return {{"name": "a.txt", "content": "one"}}

        @task.deliver_files(subject="Report", recipients=["ann@example.com"])
        def several():
            yield {{"name": "a.txt", "content": "one"}}
            yield {file!r}

        @task.deliver_files(subject="Report", recipients=["ann@example.com"])
        def nothing():
            pass

        @task.deliver_files(
            subject="Report", recipients=["ann@example.com"], security="{{{{ 'retina' }}}}", message="Hi"
        )
        def weaker():
            return {{"files": {file!r}, "security": None}}

        @task.deliver_files(subject="Report", recipients=["ann@example.com"], security="login", message="Hi")
        def unchanged():
            return {{"files": {file!r}, "security": None, "message": None, "archive": None}}

        @task.deliver_files(subject="Report", recipients=["ann@example.com"], files={file!r})
        def no_recipients():
            return {{"recipients": None}}

        @task.deliver_files
        def unknown():
            return {{"subject": "Report", "recipient": "ann@example.com"}}

        statements.expand(customer=customers())
        [one_path(), one_content(), several(), nothing(), weaker(), unchanged(), no_recipients(), unknown()]
"""


def test_a_decorated_function_returns_what_to_deliver(run_dag, connection, sandbox, tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("from disk")

    run = run_dag(DECORATED.format(file=str(file)))

    assert run.states() == {
        "customers": "success",
        "statements[0]": "success",
        "statements[1]": "skipped",
        "one_path": "success",
        "one_content": "success",
        "several": "success",
        "nothing": "failed",
        "weaker": "failed",
        "unchanged": "success",
        "no_recipients": "failed",
        "unknown": "failed",
    }
    transfer = run.xcom("statements", map_index=0)
    assert [one["email"] for one in transfer["recipients"]] == ["ann@example.com"]
    with ZipFile(io.BytesIO(stored(sandbox, transfer)["statements.zip"])) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "a.txt": b"{{ ds }} hush",
            "b.csv": b"xx",
            "file.txt": b"from disk",
        }
    assert stored(sandbox, run.xcom("one_path")) == {"file.txt": b"from disk"}
    assert stored(sandbox, run.xcom("one_content")) == {"a.txt": b"one"}
    assert run.xcom("unchanged")["message"] == "Hi", "None leaves the decorator's argument"
    assert stored(sandbox, run.xcom("several")) == {"a.txt": b"one", "file.txt": b"from disk"}
    rendered = rendered_fields(run, "statements")
    assert "ann@example.com" in rendered, "it shows what the function returned"
    assert "900123" not in rendered
    assert "hush" not in rendered
