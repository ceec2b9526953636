"""Uploads at the level of bytes on the wire: lengths, early refusals, bodies that are cut off."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.timeouts import eventually

pytestmark = pytest.mark.rule("R30: Content-Length")

MB = 1_048_576


@pytest.fixture
def draft(api: Any) -> str:
    return str(api.draft()["id"])


@pytest.mark.parametrize("length", [None, "", "abc", "-1", "1.5", "+5", "0x10", "5, 5", "5 5", "9" * 25, "chunked", 5])
def test_absent_or_unusable_length(api: Any, refused: Any, draft: str, wire: Callable[[], Any], length: Any) -> None:
    connection = wire()
    if length in ("chunked", 5):
        declared = ["Content-Length: 5"] if length == 5 else []
        connection.upload(draft, None, "Transfer-Encoding: chunked", *declared)
        connection.socket.sendall(b"5\r\nhello\r\n0\r\n\r\n")
    else:
        connection.upload(draft, length)
    refused(connection.answer(), 411, "length_required")
    assert api.get(draft)["files"] == []


@pytest.mark.parametrize("extra", [1, 1000, 8 * MB])
def test_a_length_below_the_real_size_stores_a_truncated_file(
    api: Any, control: Any, draft: str, wire: Callable[[], Any], extra: int
) -> None:
    connection = wire()
    connection.upload(draft, "5")
    try:
        connection.socket.sendall(b"hello" + b"\x01" * extra)
    except ConnectionError:
        assert extra == 8 * MB
    answer = connection.answer()
    assert answer.status_code == 201
    assert answer.json()["size"] == 5
    assert control.stored_content(draft, answer.json()["id"]) == b"hello"


@pytest.mark.rule("R31: an upload that is cut off")
@pytest.mark.parametrize(
    ("how", "declared", "sent"),
    [
        ("half_closed", 10, 0),
        ("half_closed", 10, 9),
        *((how, 4 * MB, 3 * MB) for how in ("half_closed", "closed", "reset")),
    ],
)
def test_a_cut_off_upload_leaves_nothing(
    api: Any, control: Any, refused: Any, draft: str, wire: Any, data_dir: Path, how: str, declared: int, sent: int
) -> None:
    connection = wire()
    connection.upload(draft, str(declared))
    connection.socket.sendall(b"x" * sent)
    if how == "half_closed":
        connection.socket.shutdown(socket.SHUT_WR)
        refused(connection.answer(), 500, "internal_error")
    elif how == "reset":
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.socket.close()
    eventually(lambda: [row["status"] for row in control.requests() if row["path"].endswith("/files")] == [500])
    for folder in ("partial", "files"):
        assert list((data_dir / folder).iterdir()) == []
    assert api.get(draft)["files"] == []
    assert api.attach(draft, content=b"again").status_code == 201


@pytest.mark.rule("R33: before the body is read")
@pytest.mark.parametrize(
    ("refusal", "status"), [("too_large", 413), ("unknown", 404), ("sent", 409), ("no_name", 400), ("no_key", 401)]
)
def test_an_early_refusal_can_be_read_after_the_whole_body(
    api: Any, control: Any, draft: str, wire: Callable[[], Any], refusal: str, status: int
) -> None:
    control.patch_account(per_file_limit_mb=1)
    size = 32 * MB
    target = {"unknown": "none", "sent": api.sent()["id"]}.get(refusal, draft)
    if refusal == "no_key":
        control.revoke_key(api.key)
    connection = wire()
    connection.upload(target, str(size), name="" if refusal == "no_name" else "a.txt")
    connection.socket.sendall(bytes(size))
    answer = connection.answer()
    assert answer.status_code == status
    assert answer.headers["connection"] == "close"
    assert connection.socket.recv(1) == b""
