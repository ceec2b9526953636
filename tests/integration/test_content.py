"""Files that are given by their content: what is delivered, and over tries and clears."""

from __future__ import annotations

import io
import os
import subprocess
import traceback
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from copy import copy
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jinja2
import pytest

from outbound_transfer.decorators.deliver_files import deliver_files_task
from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException, AirflowSkipException
from support.calls import SEND, ProcessCrashed, dying_after
from support.deliveries import DELIVERY, billed, digest
from support.provider import ContentWriter
from support.tasks import FakeTaskInstance, SimulatedClock, again, task_instance, without_credit

TEXT = "Größe;Preis\n{{ not_a_template }}\n"
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


def stored(sandbox, transfer: dict[str, Any]) -> dict[str, str]:
    """SHA-256 by name of what a transfer holds."""
    return {file["name"]: sandbox.stored_file(transfer["id"], file["id"])["sha256"] for file in transfer["files"]}


def content(value: Any, name: str = "a.csv") -> dict[str, Any]:
    return {"name": name, "content": value}


def write_and_close(file: Any) -> None:
    with io.TextIOWrapper(file, newline="") as text:
        text.write("a\r\n")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (TEXT, TEXT.encode()),
        ("", b""),
        (memoryview(b"xyz")[::2], b"xz"),
        ("ä" * (MB + 1), "ä".encode() * (MB + 1)),
        (lambda: LARGE, LARGE),
        (ContentWriter(lambda file: file.write(LARGE)), LARGE),
        (ContentWriter(lambda file: write_and_close(file)), b"a\r\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_very_bytes_are_delivered(deliver, sandbox, value, expected) -> None:
    transfer = deliver(content(value, "Über.csv")).run()

    assert stored(sandbox, transfer) == {"Über.csv": digest(expected)}


def test_a_retry_in_one_process_delivers_all_that_an_iterator_gives(connection, sandbox) -> None:
    operator = DeliverFilesOperator(
        task_id="task",
        files=(content(name, f"{name}.txt") for name in "abc"),
        subject="Report",
        recipients=map("{}@example.com".format, ("ann", "bob")),
    )
    task = FakeTaskInstance(lambda: copy(operator), SimulatedClock(sandbox), retries=1)  # as Airflow copies it
    sandbox.plan_faults(*[{"kind": "error", "status": 503, "method": "POST", "path": "/v1/transfers"}] * 2)

    transfer = task.run()

    assert task.try_number == 2
    assert stored(sandbox, transfer) == {f"{name}.txt": digest(name.encode()) for name in "abc"}
    assert [one["email"] for one in transfer["recipients"]] == ["ann@example.com", "bob@example.com"]


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


def test_an_error_of_a_callable_is_left_to_the_retries(deliver, sandbox) -> None:
    results = iter([OSError("not yet"), "done"])

    def make() -> str:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    transfer = deliver(content(make), retries=1).run()

    assert stored(sandbox, transfer) == {"a.csv": digest(b"done")}


@pytest.mark.parametrize("other", ["other", lambda: "other", b"other", "ab"], ids=["text", "callable", "bytes", "size"])
def test_a_clear_before_the_send_sends_the_content_that_it_finds(deliver, sandbox, other) -> None:
    ti = deliver([content("first"), content("same", "b.csv")])
    with without_credit(sandbox):
        ti.run()

    transfer = again(ti, files=[content(other), content("same", "b.csv")])

    expected = other() if callable(other) else other
    assert stored(sandbox, transfer) == {
        "a.csv": digest(expected if isinstance(expected, bytes) else expected.encode()),
        "b.csv": digest(b"same"),
    }
    assert sum(billed(sandbox).values()) == 1


def test_a_clear_after_the_send_compares_the_content(deliver, sandbox) -> None:
    ti = deliver(content("sent"))
    sent = ti.run()

    assert again(ti, files=content(lambda: b"sent"))["id"] == sent["id"]
    for other in ("tnes", "longer", lambda: b"SENT"):
        with pytest.raises(AirflowFailException, match=f"{sent['id']}.*a.csv"):
            again(ti, files=content(other))
    assert sum(billed(sandbox).values()) == 1


def test_a_retry_of_a_sent_delivery_produces_nothing(deliver, sandbox) -> None:
    made = []
    ti = deliver(content(lambda: made.append(1) or "x"), retries=1)
    with ExitStack() as crashes:
        crashes.enter_context(dying_after(SEND))
        ti.before_retry = crashes.close
        ti.run()

    assert (made, sum(billed(sandbox).values())) == ([1], 1)


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


def delivered_at_the_second_try(
    deliver: Any, sandbox: Sandbox, operator: type, files: list[Any], **arguments: Any
) -> dict[str, bytes]:
    """Deliver files whose first try attaches them; return by name what the service has stored."""
    given: dict[str, Any] = {}
    if operator is AttachFilesOperator:
        given = {"transfer_id": task_instance(CreateTransferOperator, SimulatedClock(sandbox), **DELIVERY).run()}
    ti = deliver(files, operator=operator, **arguments, **given)
    with without_credit(sandbox) if operator is DeliverFilesOperator else nullcontext():
        ti.run()
    result = again(ti)
    attached = result["files"] if operator is DeliverFilesOperator else result
    transfer_id = result["id"] if operator is DeliverFilesOperator else given["transfer_id"]
    return {file["name"]: sandbox.stored_content(transfer_id, file["id"]) for file in attached}


@pytest.mark.parametrize("operator", [DeliverFilesOperator, AttachFilesOperator])
def test_an_archive_is_delivered_once_over_tries(deliver, sandbox, tmp_path: Path, operator) -> None:
    (tmp_path / "file.bin").write_bytes(LARGE)
    files = [str(tmp_path / "*.bin"), content(TEXT)]
    stored = delivered_at_the_second_try(deliver, sandbox, operator, files, archive="both.zip")
    with ZipFile(io.BytesIO(stored.pop("both.zip"))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"file.bin": LARGE, "a.csv": TEXT.encode()}
    assert not stored


@pytest.mark.parametrize("operator", [DeliverFilesOperator, AttachFilesOperator])
def test_recipients_check_what_they_download_against_the_checksums(deliver, sandbox, tmp_path: Path, operator) -> None:
    (tmp_path / "file.bin").write_bytes(LARGE)
    files = [str(tmp_path / "*.bin"), content(TEXT)]
    stored = delivered_at_the_second_try(deliver, sandbox, operator, files, checksums="SHA256SUMS")
    (downloads := tmp_path / "downloads").mkdir()
    for name, data in stored.items():
        (downloads / name).write_bytes(data)
    assert stored.keys() == {"SHA256SUMS", "a.csv", "file.bin"}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=downloads, check=True)


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
