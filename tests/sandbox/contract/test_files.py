"""Attaching, listing and removing files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.rule("R30, R31")

MB = 1_048_576


@pytest.fixture
def draft(api: Any) -> str:
    return str(api.draft()["id"])


@pytest.mark.rule("R34")
def test_attaches_the_raw_bytes_and_lists_them(api: Any, control: Any, draft: str) -> None:
    content = bytes(range(256)) * 5_000
    # A body is never interpreted, whatever its headers say.
    response = api.attach(draft, "data.bin", content, **{"Content-Type": "text/csv", "Content-Encoding": "gzip"})
    assert response.status_code == 201
    file = response.json()
    assert file == {"id": file["id"], "name": "data.bin", "size": len(content)}
    assert response.headers["location"] == f"/v1/transfers/{draft}/files/{file['id']}"
    stored = control.stored_file(draft, file["id"])
    assert stored["sha256"] == hashlib.sha256(content).hexdigest()
    assert stored["stored_size"] == len(content)
    assert control.stored_content(draft, file["id"]) == content
    files = [file, *(api.attached(draft, name) for name in ("b.txt", "a.txt", "c.txt"))]
    for _ in range(2):  # as a draft and as a sent transfer
        assert api.http.get(f"/v1/transfers/{draft}/files").json() == {"data": files}
        assert api.get(draft)["files"] == files
        assert api.http.get(response.headers["location"]).json() == file
        api.send(draft)


def test_unknown_files(api: Any, refused: Any, draft: str) -> None:
    other = api.draft()["id"]
    file = api.attached(other)["id"]
    for path in (f"/v1/transfers/{draft}/files/{file}", f"/v1/transfers/none/files/{file}"):
        refused(api.http.get(path), 404, "not_found")
        refused(api.http.delete(path), 404, "not_found")
    refused(api.http.get("/v1/transfers/none/files"), 404, "not_found")
    refused(api.attach("none"), 404, "not_found")


@pytest.mark.rule("R31: a name that is attached; R34: remove")
def test_a_repeated_name_returns_the_first_file_until_that_is_removed(
    api: Any, control: Any, draft: str, refused: Any
) -> None:
    file = api.attached(draft, "a.txt", b"first")
    for content in (b"first", b"second, longer", b"x" * 3 * MB):
        response = api.attach(draft, "a.txt", content)
        assert response.status_code == 200
        assert response.json() == file
    assert control.stored_content(draft, file["id"]) == b"first"
    assert api.get(draft)["files"] == [file]
    path = f"/v1/transfers/{draft}/files/{file['id']}"
    removed = api.http.delete(path)
    assert (removed.status_code, removed.content) == (204, b"")
    refused(api.http.delete(path), 404, "not_found")
    assert api.attached(draft, content=b"other")["size"] == 5


@pytest.mark.rule("R30: directories are removed; R32")
def test_names_are_separate_by_transfer_exact_and_without_their_directory(api: Any, draft: str) -> None:
    names = ["a.txt", "A.txt", "a.txt.", "a  .txt", "e\u0301.txt", "\u00e9.txt"]
    for name in names:
        octets = "".join(f"%{octet:02X}" for octet in name.encode())
        extended = {"Content-Disposition": f"attachment; filename*=UTF-8''{octets}"}
        assert api.attach(draft, **extended).status_code == 201
    files = api.get(draft)["files"]
    assert [file["name"] for file in files] == names
    assert api.attach(api.draft()["id"], "a.txt").status_code == 201
    for folder in ("dir/", "/x/y/", "C:\\\\x\\\\", "..\\\\", "../../", "x\\\\y/"):
        response = api.attach(draft, f"{folder}a.txt")
        assert (response.status_code, response.json()) == (200, files[0]), folder


@pytest.mark.rule("R30: Content-Disposition")
@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        (b"attachment; filename=plain.txt", "plain.txt"),
        (b'attachment; filename="two words.txt"', "two words.txt"),
        (b'ATTACHMENT; FILENAME="upper.txt"', "upper.txt"),
        (b'attachment; filename="say \\"hi\\".txt"', 'say "hi".txt'),
        ('attachment; filename="naïve.txt"'.encode(), "naïve.txt"),
        ('attachment; filename="naïve.txt"'.encode("latin-1"), "naïve.txt"),
        (b"attachment; filename*=UTF-8''na%C3%AFve%20file.txt", "naïve file.txt"),
        (b"attachment; filename=\"plain.txt\"; filename*=UTF-8''star.txt", "star.txt"),
        (b"attachment; filename*=UTF-8''star.txt; filename=\"plain.txt\"", "star.txt"),
        (b"attachment; filename*=UTF-8''..%2F..%2Fetc%2Fpasswd", "passwd"),
        (b"attachment; filename=\"plain.txt\"; filename*=UTF-8''%FF.txt", "plain.txt"),
    ],
)
def test_filename(api: Any, draft: str, disposition: bytes, name: str) -> None:
    response = api.attach(draft, **{"Content-Disposition": disposition})
    assert response.status_code == 201, response.text
    assert response.json()["name"] == name


@pytest.mark.rule("R30: Content-Disposition")
def test_a_missing_repeated_or_unusable_filename_is_refused(api: Any, refused: Any, draft: str) -> None:
    dispositions = (
        *("", "attachment", "attachment; filename=", 'attachment; filename=""', 'attachment; filename="dir/"'),
        *('attachment; filename=".."', "attachment; filename*=UTF-8''", "attachment; filename*=UTF-8''%00"),
        *("attachment; filename*=UTF-8''%FF.txt", "attachment; filename=a.txt; filename=b.txt"),
        *("inline; filename=a.txt", 'form-data; name="file"; filename="a.txt"'),
    )
    twice = [("Content-Disposition", f"attachment; filename={name}") for name in "ab"]
    wrong: list[Any] = [{}, twice, *({"Content-Disposition": each} for each in dispositions)]
    for headers in wrong:
        response = api.http.post(f"/v1/transfers/{draft}/files", content=b"x", headers=headers)
        assert "Content-Disposition" in refused(response, 400, "invalid_request"), headers
    assert api.get(draft)["files"] == []


@pytest.mark.rule("R30: Content-Type")
def test_the_stored_type_is_that_of_the_name(api: Any, control: Any, draft: str) -> None:
    types = {"a.pdf": "application/pdf", "a.CSV": "text/csv", "a": "application/octet-stream", "a.html": "text/html"}
    for name, stored in types.items():
        response = api.attach(draft, name, **{"Content-Type": "image/png"})
        assert control.stored_file(draft, response.json()["id"])["content_type"] == stored


@pytest.mark.rule("R33: rounding")
@pytest.mark.parametrize(("size", "accepted"), [(0, True), (2 * MB - 1, True), (2 * MB, True), (2 * MB + 1, False)])
def test_size_limit(api: Any, control: Any, refused: Any, draft: str, size: int, accepted: bool) -> None:
    control.patch_account(per_file_limit_mb=2)
    response = api.attach(draft, content=b"x" * size)
    if accepted:
        assert response.status_code == 201
        assert response.json()["size"] == size
    else:
        refused(response, 413, "file_too_large")


@pytest.mark.rule("R33: the message")
def test_size_is_checked_before_any_byte_is_read(
    api: Any, control: Any, refused: Any, draft: str, wire: Callable[[], Any]
) -> None:
    control.patch_account(per_file_limit_mb=100)
    connection = wire()
    connection.upload(draft, str(100 * MB + 100_000))
    message = refused(connection.answer(), 413, "file_too_large")
    assert "101" in message
    assert "100" in message
    assert str(100 * MB + 100_000) not in message
    connection = wire()
    connection.upload(draft, str(100 * MB), "Expect: 100-continue")
    assert connection.socket.recv(100).startswith(b"HTTP/1.1 100 ")


@pytest.mark.rule("R20")
def test_a_draft_sent_during_the_upload_refuses_the_file(
    api: Any, refused: Any, draft: str, wire: Callable[[], Any]
) -> None:
    api.attached(draft, "first.txt")
    connection = wire()
    connection.upload(draft, "10", name="late.txt")
    connection.socket.sendall(b"01234")
    api.get(draft)  # a call later on another connection is read after what was sent before it
    assert api.send(draft).status_code == 200
    connection.socket.sendall(b"56789")
    refused(connection.answer(), 409, "invalid_state")
    assert [file["name"] for file in api.get(draft)["files"]] == ["first.txt"]


def test_concurrent_uploads_with_the_same_name_make_one_file(api: Any, draft: str, wire: Callable[[], Any]) -> None:
    connections = [wire() for _ in range(3)]
    for connection in connections:
        connection.upload(draft, "10")
        connection.socket.sendall(b"01234")
    api.get(draft)  # a call later on another connection is read after what was sent before it
    for connection in connections:
        connection.socket.sendall(b"56789")
    answers = [connection.answer() for connection in connections]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 201]
    assert len({answer.content for answer in answers}) == 1
    assert api.get(draft)["files"] == [answers[0].json()]


@pytest.mark.rule("R55: number of files")
def test_many_files(api: Any, draft: str, unlimited: None) -> None:
    for number in range(300):
        api.attached(draft, f"{number}.txt")
    assert len(api.http.get(f"/v1/transfers/{draft}/files").json()["data"]) == 300
