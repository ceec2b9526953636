"""An archive holds the very files, and is the same file each time."""

from __future__ import annotations

import io
import os
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.files.archive import check_archive_name, check_entry_names, pack
from outbound_transfer.files.content import Spool
from outbound_transfer.files.sources import resolve_files
from outbound_transfer.protocol.content_disposition import check_name
from outbound_transfer.protocol.errors import InvalidDelivery, NameRefused, SourceChanged


def is_deliverable(name: str) -> bool:
    try:
        check_name(name)
    except NameRefused:
        return False
    return True


NAMES = st.text(min_size=1, max_size=60).filter(is_deliverable)


def archived(files: dict[str, bytes]) -> bytes:
    with Spool() as spool:
        sources = resolve_files([{"name": name, "content": data} for name, data in files.items()], spool)
        archive = pack("a.zip", sources, spool)
        return b"".join(archive.upload().body())


def can_be_unpacked(files: dict[str, bytes]) -> bool:
    try:
        check_entry_names(files)
    except NameRefused:
        return False
    return True


@given(st.dictionaries(NAMES, st.binary(max_size=2000), min_size=1, max_size=5).filter(can_be_unpacked))
def test_an_archive_holds_the_very_files_in_their_order(files) -> None:
    data = archived(files)

    with ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert [(name, archive.read(name)) for name in archive.namelist()] == list(files.items())
    assert archived(files) == data


@pytest.mark.parametrize(
    "names",
    [
        ["C:evil.exe"],
        ["a.txt:stream"],
        *([f"a{character}b.txt"] for character in '<>"|?*'),
        ["a."],
        ["a "],
        ["A.txt", "a.txt"],
        ["E\u0301.txt", "\xe9.txt"],
        ["stra\xdfe", "STRASSE"],
    ],
)
def test_a_name_that_another_system_would_change_is_not_packed(names: list[str]) -> None:
    with pytest.raises(NameRefused, match="in an archive"):
        archived(dict.fromkeys(names, b"a"))


def test_the_bytes_do_not_depend_on_the_copy_of_a_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.csv"

    def pack_file() -> tuple[int, str]:
        with Spool() as spool:
            archive = pack("a.zip", resolve_files([path], spool), spool)
            return archive.size, archive.fingerprint

    path.write_bytes(b"a,b\n" * 1000)
    first = pack_file()
    path.unlink()
    path.write_bytes(b"a,b\n" * 1000)
    path.chmod(0o600)
    os.utime(path, (1, 1))
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    assert pack_file() == first


def test_an_entry_may_need_zip64(monkeypatch) -> None:
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", 1000)
    data = archived({"a": b"x" * 5000, "b": b"y"})

    with ZipFile(io.BytesIO(data)) as archive:
        assert (archive.read("a"), archive.read("b")) == (b"x" * 5000, b"y")


def test_a_file_that_changes_is_not_packed(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"before")
    with Spool() as spool:
        sources = resolve_files([path], spool)
        path.write_bytes(b"after that")
        with pytest.raises(SourceChanged):
            pack("a.zip", sources, spool)


@pytest.mark.parametrize("name", ["a.zip", "Übersicht.ZIP", "", None])
def test_a_name_of_an_archive(name) -> None:
    assert check_archive_name(name) == (name or "")


@pytest.mark.parametrize("name", ["None", "a.zip.exe", True, 3, ["a.zip"], b"a.zip", "../a.zip", "a\n.zip", "/a.zip"])
def test_no_name_of_an_archive(name) -> None:
    with pytest.raises((InvalidDelivery, NameRefused)):
        check_archive_name(name)
