"""Content and archives: the very bytes, the same ones each time, or an error that quotes nothing."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.provider import ContentWriter
from support.remote_files import MB, peak_memory

Deliver = Callable[..., dict[str, bytes]]
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def content(value: Any, name: str = "a") -> dict[str, Any]:
    return {"name": name, "content": value}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
FORMS: list[Callable[[bytes], Any]] = [
    bytes,
    bytearray,
    memoryview,
    lambda data: lambda: data,
    lambda data: ContentWriter(lambda file: file.write(data)),
    lambda data: lambda: bytearray(data),
]


@SHARED
@given(st.lists(st.binary(max_size=2_000) | TEXTS, min_size=len(FORMS), max_size=len(FORMS)))
def test_any_bytes_in_any_form_are_sent_as_they_are_and_text_as_utf_8(deliver: Deliver, values: list[Any]) -> None:
    data = [value.encode() if isinstance(value, str) else value for value in values]
    files = [content(form(each), f"{number}") for number, (form, each) in enumerate(zip(FORMS, data, strict=True))]
    files += [content(lambda value=value: value, f"given {number}") for number, value in enumerate(values)]  # type: ignore[misc]
    expected = {f"{number}": each for number, each in enumerate(data)}
    assert deliver(files) == expected | {f"given {number}": each for number, each in enumerate(data)}


@pytest.mark.slow
def test_large_content_and_its_archive_take_little_memory(deliver: Deliver, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(96 * MB)

    def write(file: BinaryIO) -> None:
        with (tmp_path / "large").open("rb") as large:
            shutil.copyfileobj(large, file)

    deliver(content("small"))  # imports, connections and buffers of the first delivery
    with peak_memory() as peak:
        deliver(content(ContentWriter(write), "large.bin"), archive="a.zip")
    assert peak[0] < 48 * MB


#: What Windows, macOS and the service keep, in any script.
PARTS = [*"abcxyzäß報😀", " ", "-", ",", "'", "%41", "#"]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=30).map("".join).map("n{}.csv".format)


@SHARED
@given(st.dictionaries(NAMES, st.binary(max_size=2_000), min_size=1, max_size=5))
def test_an_archive_has_the_very_files_in_their_order_and_is_the_same_each_time(deliver, files) -> None:
    first, again = (
        deliver([content(data, name) for name, data in files.items()], archive="Über.zip", subject=f"Report {number}")
        for number in range(2)
    )
    assert first == again
    with ZipFile(io.BytesIO(first["Über.zip"])) as archive:
        assert archive.testzip() is None
        assert [(name, archive.read(name)) for name in archive.namelist()] == list(files.items())


def test_an_archive_does_not_depend_on_the_copy_of_a_file(deliver: Deliver, tmp_path: Path, monkeypatch: Any) -> None:
    (path := tmp_path / "a.csv").write_bytes(b"a,b\n" * 1_000)
    first = deliver(path, archive="a.zip")
    path.unlink()
    path.write_bytes(b"a,b\n" * 1_000)
    path.chmod(0o600)
    os.utime(path, (1, 1))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert deliver(path, archive="a.zip", subject="Again") == first


def test_a_file_in_an_archive_may_be_larger_than_a_plain_zip_holds(deliver: Deliver, monkeypatch: Any) -> None:
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", 1_000)
    sent = deliver([content(b"x" * 5_000), content(b"y", "b")], archive="a.zip")
    with ZipFile(io.BytesIO(sent["a.zip"])) as archive:
        assert (archive.read("a"), archive.read("b")) == (b"x" * 5_000, b"y")


@pytest.mark.parametrize(
    "names",
    [["C:evil.exe"], ["a.txt:stream"], *([f"a{each}b.txt"] for each in '<>"|?*'), ["a."], ["a "], ["CON"], ["aux.csv"],
     ["com1.tar.gz"], ["A.txt", "a.txt"],
     ["E\u0301.txt", "\xe9.txt"], ["stra\xdfe", "STRASSE"]],
    ids=repr,
)  # fmt: skip
def test_a_name_that_another_system_would_change_is_not_packed(refused: Callable[..., str], names: list[str]) -> None:
    told = refused([content("x", name) for name in names], archive="a.zip")
    assert "in an archive" in told or "same name" in told


def test_no_file_may_have_the_name_of_the_checksums(refused: Callable[..., str]) -> None:
    assert "same name" in refused(content("a", "SHA256SUMS"), checksums="SHA256SUMS")


@pytest.mark.parametrize("name", ["None", "a.zip.exe", True, 3, ["a.zip"], b"a.zip", "../a.zip", "a\n.zip", "/a.zip"])
def test_an_invalid_archive_name_is_refused(refused: Callable[..., str], name: Any) -> None:
    assert refused(content("x"), archive=name, _airflow_from_mapped=True)


@pytest.mark.parametrize("changed", [False, True])
def test_recipients_can_check_what_they_got(deliver: Deliver, tmp_path: Path, changed: bool) -> None:
    names = ["a.csv", " b  c.csv", "Ü 報告.csv", "'$(touch owned)'.csv"]
    sent = deliver([content(name * 1_000, name) for name in names], checksums="SHA256SUMS")
    for name, data in sent.items():
        (tmp_path / name).write_bytes(data + b"!" * (changed and name == "a.csv"))
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == changed
    assert hashlib.sha256(sent["a.csv"]).hexdigest() in sent["SHA256SUMS"].decode()
