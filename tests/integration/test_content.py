"""Files that are given by their content: what is refused, and what tries and clears conclude."""

from __future__ import annotations

import io
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jinja2
import pytest

from outbound_transfer.decorators.deliver_files import deliver_files_task
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import SEND, ProcessCrashed, dying_after
from support.deliveries import DELIVERY, billed
from support.memory import begin_anew
from support.provider import ContentWriter
from support.tasks import FakeTaskInstance, SimulatedClock, again

#: Content is read in parts of about 1 MB.
LARGE = b"large" * 210_000
SECRET = "SECRET content"


@pytest.fixture
def deliver(task) -> Callable[..., FakeTaskInstance]:
    return lambda files, **arguments: task(DeliverFilesOperator, files=files, **DELIVERY, **arguments)


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
        (content(lambda: lambda: SECRET), "function"),
        (content(io.StringIO(SECRET)), "StringIO"),
        (content(lambda: io.BytesIO(b"x")), "BytesIO"),
        (content(f"\udc80{SECRET}"), "Unicode"),
        (content(lambda: f"{SECRET}\udc80"), "Unicode"),
        (content(SECRET, ""), "name of a file must not be empty"),
        (content(SECRET, 3), "be a string, not int"),
        ({"content": SECRET}, 'needs "path"'),
        ({"path": "/etc/hostname", "content": SECRET}, 'needs "path"'),
        ({"path": "/etc/hostname", "content": SECRET, "name": "a"}, 'needs "path"'),
        ({"name": "a", "sha256": "b"}, 'needs "path"'),
        ({"name": "a", "contents": SECRET}, "not 'contents'"),
        ([{"name": "a", "data": SECRET.encode(), "path": "x"}], "not 'data'"),
        ({"name": "a", "content": SECRET, "path": "x"}, 'needs "name" and "content"'),
        ([content("x"), {"path": "/etc/hostname", "name": "a.csv"}], "two files have the same name"),
        (SECRET.encode(), "not bytes"),
        ([bytearray(SECRET.encode())], "not bytearray"),
        ([f"{SECRET}\0"], "text with a null character"),
        ([(SECRET,)], "not (tuple|list)"),
    ],
)
def test_invalid_content_is_refused_before_anything_is_created_and_is_not_quoted(
    deliver, sandbox, files, message
) -> None:
    operator = DeliverFilesOperator(task_id="t", files=files, **DELIVERY, _airflow_from_mapped=True)
    operator.render_template_fields({}, jinja2.Environment())
    if not isinstance(files, list) or not isinstance(files[0], str | tuple):  # which are paths, until they are checked
        assert SECRET not in repr(operator.files)
    with pytest.raises(AirflowFailException, match=message) as raised:
        deliver(files, retries=1, _airflow_from_mapped=True).run()  # checked when it runs
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert sandbox.requests() == []


@pytest.mark.parametrize("archive", [None, "both.zip"])
def test_a_clear_after_the_send_compares_the_content(deliver, sandbox, archive) -> None:
    ti = deliver([content("one"), content("two", "b.csv")], archive=archive)
    sent = ti.run()["id"]
    assert again(ti, files=[content(lambda: b"one"), content("two", "b.csv")])["id"] == sent
    for other in ("eno", "longer", lambda: b"ONE"):
        with pytest.raises(AirflowFailException, match=f"{sent}.*{archive or 'a.csv'}"):
            again(ti, files=[content(other), content("two", "b.csv")])
    if archive:
        with pytest.raises(AirflowFailException, match=sent):
            again(ti, files=[content("two", "b.csv"), content("one")])
        with pytest.raises(AirflowFailException, match=sent):
            again(ti, archive=None)
    assert sum(billed(sandbox).values()) == 1


def test_no_temporary_file_stays(deliver, tmp_path, monkeypatch) -> None:
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


def decorated(sandbox, function: Callable[..., Any], **arguments: Any) -> FakeTaskInstance:
    return FakeTaskInstance(
        lambda: deliver_files_task(function, task_id="task", **arguments)().operator, SimulatedClock(sandbox)
    )


def test_a_decorated_function_returns_what_to_deliver(connection, sandbox, tmp_path) -> None:
    (tmp_path / "file.txt").write_text("from disk")
    file, ann = str(tmp_path / "file.txt"), ["ann@example.com"]
    several = {"files": [content("{{ ds }}", "a.txt"), content(lambda: b"xx", "b.csv"), file], "recipients": ann}
    unchanged = {"files": file, "security": None, "message": None, "archive": None}

    def generator() -> Any:
        yield from several["files"]

    for function, names in ((lambda: file, ["file.txt"]), (generator, ["a.txt", "b.csv", "file.txt"])):
        sent = decorated(sandbox, function, **DELIVERY).run()
        assert sorted(each["name"] for each in sent["files"]) == names
        begin_anew(sandbox)
    packed = decorated(sandbox, lambda: several, subject="Report", archive="all.zip").run()
    with ZipFile(io.BytesIO(sandbox.stored_content(packed["id"], packed["files"][0]["id"]))) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == {"a.txt": b"{{ ds }}", "b.csv": b"xx", "file.txt": b"from disk"}
    begin_anew(sandbox)
    kept = decorated(sandbox, lambda: unchanged, **DELIVERY, security="email", message="Hi").run()
    assert (kept["message"], kept["security"]) == ("Hi", "email"), "None leaves the decorator's argument"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "the function returned None"),
        ({"files": "a.csv", "recipients": None}, "recipient 1: must be an address"),
        ({"files": "a.csv", "recipient": "ann@example.com"}, "the function returned 'recipient'"),
    ],
)
def test_an_invalid_return_value_of_a_decorated_function_is_named(connection, sandbox, returned, message) -> None:
    with pytest.raises(AirflowFailException, match=message):
        decorated(sandbox, lambda: returned, subject="Report").run()
    assert sandbox.requests() == []


@pytest.mark.parametrize("where", ["function", "generator", "content"])
def test_a_function_cannot_skip_what_was_sent(connection, sandbox, where) -> None:
    """Its process dies after the send; the retry would be skipped, as if nothing had been delivered."""
    calls: list[int] = []

    def skip_second() -> str:
        calls.append(1)
        if len(calls) > 1:
            raise AirflowSkipException("nothing new")
        return "x"

    def generator() -> Any:
        yield content(skip_second())

    function = {
        "function": lambda: content(skip_second()),
        "generator": generator,
        "content": lambda: content(skip_second),
    }[where]
    task = decorated(sandbox, function, **DELIVERY)
    task.max_tries = task.retries = task.try_number = 1
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
