"""Contents are held as they are, read from their beginning, and shown nowhere."""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import json
import subprocess
import sys
from http.client import HTTPResponse
from typing import Any, BinaryIO, cast

import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.files.content import CHUNK_BYTES, Content, ContentWriter, Spool, wrap_contents
from outbound_transfer.files.sources import normalize_files, parse_files, resolve_files
from outbound_transfer.protocol.errors import SourceUnreadable

FORMS = [
    lambda data: data,
    bytearray,
    memoryview,
    io.BytesIO,
    lambda data: lambda: data,
    lambda data: lambda: io.BytesIO(data),
    lambda data: ContentWriter(lambda file: file.write(data)),
]


def read(source: Any) -> bytes:
    return b"".join(source.upload().body())


@given(st.binary(), st.sampled_from(FORMS))
def test_any_bytes_in_any_form_are_held(data, form) -> None:
    with Spool() as spool:
        (source,) = resolve_files({"name": "a", "content": form(data)}, spool)

        assert (source.size, source.fingerprint) == (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
        assert (read(source), read(source)) == (data, data)
        source.check_unchanged()


@given(st.text())
def test_any_text_is_held_as_utf_8(text) -> None:
    with Spool() as spool:
        for value in (text, lambda: text):
            (source,) = resolve_files([{"name": "a", "content": value}], spool)
            assert read(source) == text.encode()


@given(st.binary(min_size=4), st.sampled_from(FORMS))
def test_what_json_represents_is_stable_and_holds_no_content(data, form) -> None:
    files = [{"name": "a", "content": form(data)}, "b.csv"]

    parsed = parse_files(files)
    plain = normalize_files(files)

    assert parse_files(parsed) == parsed
    assert normalize_files(parsed) == plain == json.loads(json.dumps(plain))
    assert repr(parsed) == "[{'name': 'a', 'content': <content>}, 'b.csv']"
    digest = hashlib.sha256(data).hexdigest() if isinstance(form(data), (bytes, bytearray, memoryview)) else ""
    assert plain == [{"name": "a", "sha256": digest}, "b.csv"]


def test_a_large_content_is_read_from_its_beginning_by_each_reader() -> None:
    data = bytes(range(256)) * (CHUNK_BYTES // 256 + 1)
    with Spool() as spool:
        held = spool.write(lambda file: file.write(data))
        first, second = held.open(), held.open()
        assert first.read(10) + second.read(10) == data[:10] * 2
        first.close()
        assert second.read(10) == data[10:20]
        assert held.stat() == (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")


def test_a_writer_may_seek_and_close_and_write_less_than_before() -> None:
    def write(file: Any) -> None:
        with io.TextIOWrapper(file) as text:
            text.write("first")
            text.seek(0)
            text.truncate()
            text.write("2nd")

    with Spool() as spool:
        assert spool.write(write).open().read() == b"2nd"


def test_after_the_spool_nothing_else_is_read() -> None:
    with Spool() as spool:
        held = spool.write(lambda file: file.write(b"x" * 100))
    with io.BytesIO() as _, pytest.raises(ValueError, match="closed"):
        held.open().read(1)
    gc.collect()


def test_a_file_that_fails_does_not_quote_what_it_read() -> None:
    class Broken(io.RawIOBase):
        def seek(self, offset: int, whence: int = 0) -> int:
            return 0

        def read(self, size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with Spool() as spool, pytest.raises(SourceUnreadable, match="the content of 'a' cannot be read: OSError"):
        resolve_files({"name": "a", "content": Broken()}, spool)


def test_a_stream_that_has_nothing_yet_is_not_taken_for_its_end() -> None:
    class NotReady(io.RawIOBase):
        def read(self, size: int = -1) -> None:
            return None

    with Spool() as spool, pytest.raises(ValueError, match="returns NoneType"):
        resolve_files({"name": "a", "content": NotReady}, spool)


class Canned:
    """A connection that has received all that its server sent before it closed."""

    def __init__(self, received: bytes) -> None:
        self.received = received

    def makefile(self, mode: str) -> BinaryIO:
        return io.BytesIO(self.received)


def response_of(received: bytes) -> HTTPResponse:
    response = HTTPResponse(cast("Any", Canned(received)), method="GET")
    response.begin()
    return response


def urllib3_response_of(received: bytes) -> Any:
    header, body = received.split(b"\r\n\r\n")
    length = {"Content-Length": header.rpartition(b" ")[2].decode()}
    return urllib3.HTTPResponse(io.BytesIO(body), length, preload_content=False, enforce_content_length=False)


@pytest.mark.parametrize(
    "opened", [response_of, lambda received: io.BufferedReader(response_of(received)), urllib3_response_of]
)
@pytest.mark.parametrize("sent", [0, 400, 500, 999])
def test_a_response_that_is_cut_is_not_delivered(opened, sent) -> None:
    received = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * sent
    message = rf"the content of 'a' cannot be read: .* {1000 - sent:,} bytes before its end"

    with Spool() as spool, pytest.raises(SourceUnreadable, match=message):
        resolve_files({"name": "a", "content": lambda: opened(received)}, spool)


@pytest.mark.parametrize("opened", [response_of, urllib3_response_of])
def test_a_whole_response_is_delivered(opened) -> None:
    received = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000

    with Spool() as spool:
        (source,) = resolve_files({"name": "a", "content": lambda: opened(received)}, spool)
        assert read(source) == b"x" * 1000


def test_a_response_of_no_announced_size_ends_with_its_connection() -> None:
    with Spool() as spool:
        (source,) = resolve_files({"name": "a", "content": lambda: response_of(b"HTTP/1.1 200 OK\r\n\r\nwhole")}, spool)
        assert read(source) == b"whole"


@pytest.mark.parametrize("length", [4, True, None, "4", len])
def test_the_length_of_another_file_is_its_own_affair(length) -> None:
    class Sized(io.BytesIO):
        pass

    file: Any = Sized(b"data")
    file.length = length  # that of a file in GridFS is its size

    with Spool() as spool:
        (source,) = resolve_files({"name": "a", "content": lambda: file}, spool)
        assert read(source) == b"data"


def test_contents_are_wrapped_once_and_copied_by_reference() -> None:
    file = io.BytesIO(b"x")
    files = [{"name": "a", "content": file}, {"name": "b", "content": "{{ ds }}"}, "c.csv"]

    wrapped = wrap_contents(files, rendered=False)

    assert (wrapped[0]["content"].value, wrapped[1:]) == (file, files[1:])
    assert wrap_contents(wrapped, rendered=False) == wrapped
    assert isinstance(wrap_contents(wrapped, rendered=True)[1]["content"], Content)
    assert copy.deepcopy(wrapped)[0]["content"].value is file


MEMORY = """
import re
from pathlib import Path
from outbound_transfer.files.archive import pack
from outbound_transfer.files.content import ContentWriter, Spool
from outbound_transfer.files.sources import resolve_files

def peak():
    # Not ru_maxrss, which begins with that of the parent.
    return int(re.search("VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

def write(file):
    for number in range(300):
        file.write(number.to_bytes(2, "big") * (512 * 1024))

before = peak()
with Spool() as spool:
    sources = resolve_files({"name": "large.bin", "content": ContentWriter(write)}, spool)
    size = sum(map(len, sources[0].upload().body()))
    spooled = peak() - before
    archive = pack("large.zip", sources, spool)
    print(size, spooled, sum(map(len, archive.upload().body())) == archive.size, peak() - before)
"""


@pytest.mark.slow
def test_300_mb_take_little_memory() -> None:
    found = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)

    size, spooled, is_whole, packed = found.stdout.split()
    print(f"peak memory over that before: {spooled} MiB for 300 MiB of content, {packed} MiB with an archive of it")
    assert (int(size), is_whole) == (300 * 1024 * 1024, "True")
    assert max(int(spooled), int(packed)) < 50
