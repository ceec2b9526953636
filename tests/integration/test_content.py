"""Files that are given by their content: what is delivered, and over tries and clears."""

from __future__ import annotations

import io
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest

from outbound_transfer.decorators.deliver_files import deliver_files_task
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import SEND, ProcessCrashed, dying_after
from support.deliveries import DELIVERY, billed
from support.provider import ContentWriter
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance

#: Content is read in parts of about this size.
MB = 1024 * 1024
LARGE = b"large" * (MB // 5 + 1)


@pytest.fixture
def deliver(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    """Make a task that delivers; its time is the sandbox's."""
    time = SimulatedClock(sandbox)

    def make(files: Any, *, operator: type = DeliverFilesOperator, retries: int = 0, **arguments: Any) -> Any:
        given = {**DELIVERY, **arguments} if operator is DeliverFilesOperator else arguments
        return task_instance(operator, time, retries=retries, files=files, **given)

    return make


def content(value: Any, name: str = "a.csv") -> dict[str, Any]:
    return {"name": name, "content": value}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (content(None), "NoneType"),
        (content(1), "int"),
        (content(Path("/etc/hostname")), "PosixPath"),
        (content(["a"]), "list"),
        (content(lambda: None), "NoneType"),
        (content(lambda: lambda: "x"), "function"),
        (content(io.StringIO("text")), "StringIO"),
        (content(io.BytesIO(b"x")), "BytesIO"),
        (content(lambda: io.BytesIO(b"x")), "BytesIO"),
        (content("\udc80secret"), "Unicode"),
        (content(lambda: "secret\udc80"), "Unicode"),
        (content("x", "../a.csv"), "path separator"),
        (content("x", "/etc/a.csv"), "path separator"),
        (content("x", "a\n.csv"), "control character"),
        (content("x", ""), "name of a file must not be empty"),
        (content("x", 3), "is text, not int"),
        ({"content": "x"}, 'needs "path"'),
        ({"path": "/etc/hostname", "content": "x"}, 'needs "path"'),
        ({"path": "/etc/hostname", "content": "x", "name": "a"}, 'needs "path"'),
        ({"name": "a", "sha256": "b"}, 'needs "path"'),
        ([content("x"), content("y")], "two files have one name"),
        ([content("x"), content("x")], "two files have one name"),
        ([content("x"), {"path": "/etc/hostname", "name": "a.csv"}], "two files have one name"),
    ],
)
def test_what_is_no_content_is_refused_before_anything_is_created(deliver, sandbox, files, message) -> None:
    with pytest.raises(AirflowFailException, match=message) as failure:
        deliver(files, retries=1, _airflow_from_mapped=True).run()  # checked when it runs
    assert "secret" not in str(failure.value)
    assert sandbox.requests() == []


def test_a_clear_after_the_send_compares_the_content(deliver, sandbox) -> None:
    ti = deliver(content("sent"))
    sent = ti.run()
    assert again(ti, files=content(lambda: b"sent"))["id"] == sent["id"]
    for other in ("tnes", "longer", lambda: b"SENT"):
        with pytest.raises(AirflowFailException, match=f"{sent['id']}.*a.csv"):
            again(ti, files=content(other))
    assert sum(billed(sandbox).values()) == 1


def test_no_temporary_file_stays(deliver, sandbox, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []

    def write(file: Any) -> None:
        file.write(LARGE)
        seen.append(list(tmp_path.iterdir()))
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        deliver([content(LARGE), content(ContentWriter(write), "b.csv")]).run()
    before = len(os.listdir("/proc/self/fd"))
    deliver([content(LARGE), content(lambda: LARGE, "b.csv")]).run()

    assert (seen, list(tmp_path.iterdir())) == ([[]], [])
    assert len(os.listdir("/proc/self/fd")) <= before + 2


@pytest.mark.parametrize(("value", "name"), [(None, None), ("SUMS", "SUMS")])
def test_a_template_without_a_value_asks_for_no_checksums(value: Any, name: str | None) -> None:
    operator = DeliverFilesOperator(task_id="task", files="a.csv", checksums="{{ name }}", **DELIVERY)
    operator.render_template_fields({"name": value}, jinja2.Environment())
    assert operator.checksums == name


def test_other_content_in_an_archive_is_refused_after_the_send(deliver, sandbox) -> None:
    ti = deliver([content("one"), content("two", "b.csv")], archive="both.zip")
    sent = ti.run()
    assert again(ti)["id"] == sent["id"]
    with pytest.raises(AirflowFailException, match=f"{sent['id']}.*both.zip"):
        again(ti, files=[content("one"), content("owt", "b.csv")])
    with pytest.raises(AirflowFailException, match=sent["id"]):
        again(ti, files=[content("two", "b.csv"), content("one")])
    with pytest.raises(AirflowFailException, match=sent["id"]):
        again(ti, archive=None)
    assert sum(billed(sandbox).values()) == 1


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (b"SECRET content", "not bytes"),
        ([b"SECRET content"], "not bytes"),
        ([bytearray(b"SECRET content")], "not bytearray"),
        ({"name": "a", "contents": "SECRET content"}, "not 'contents'"),
        ([{"name": "a", "data": b"SECRET content", "path": "x"}], "not 'data'"),
        ({"name": "a", "content": "SECRET content", "path": "x"}, 'it has "name" and "content"'),
        (["SECRET content\0"], "text with a null character"),
        ([("SECRET content",)], "not (tuple|list)"),
    ],
)
def test_content_in_a_wrong_form_is_not_quoted(deliver, files, error) -> None:
    operator = DeliverFilesOperator(task_id="t", files=files, **DELIVERY, _airflow_from_mapped=True)
    operator.render_template_fields({}, jinja2.Environment())
    if not isinstance(files, list) or not isinstance(files[0], str | tuple):  # which are paths, until they are checked
        assert "SECRET" not in repr(operator.files)
    with pytest.raises(AirflowFailException, match=error) as raised:
        deliver(files, _airflow_from_mapped=True).run()
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("where", ["function", "generator", "content"])
def test_a_function_cannot_skip_what_was_sent(connection, sandbox, where) -> None:
    """Its process dies after the send; the retry would be skipped, as if nothing had been delivered."""
    calls: list[int] = []

    def skip_second() -> str:
        calls.append(1)
        if len(calls) > 1:
            raise AirflowSkipException("nothing new")
        return "x"

    def function() -> Any:
        return content(skip_second())

    def generator() -> Any:
        yield content(skip_second())

    def of_content() -> Any:
        return content(skip_second)

    callable_ = {"function": function, "generator": generator, "content": of_content}[where]
    task = FakeTaskInstance(
        lambda: deliver_files_task(callable_, task_id="task", **DELIVERY)().operator, SimulatedClock(sandbox), retries=1
    )
    task.max_tries = task.try_number = 1
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        task.run_once()
    (sent,) = sandbox.sent()
    if where == "content":  # a retry of what was sent produces none
        assert task.run()["id"] == sent
    else:
        with pytest.raises(AirflowFailException, match=f"nothing new.*{sent}"):
            task.run()
    with pytest.raises(AirflowFailException, match=f"nothing new.*{sent}"):
        again(task)
    assert sandbox.sent() == [sent]
