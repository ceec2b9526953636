"""The files of a delivery: found, read and watched for change (docs/guarantees.md#sent-as-intended)."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import fs as file_systems
from airflow.sdk.io import store
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.files.sources import CHUNK_BYTES, LocalFile, Source, normalize_files, resolve_files
from outbound_transfer.protocol.errors import (
    InvalidDelivery,
    NameRefused,
    SourceChanged,
    SourceMissing,
    SourceUnreadable,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that a pattern can find or mistake."""
    for name in (
        "b.csv",
        "a.csv",
        "c.txt",
        "[ab].csv",
        "a*.csv",
        "sp ace%20.csv",
        "sub/d.csv",
        "sub/deep/e.csv",
        ".hid.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def found(files: Any) -> list[str]:
    return [source.name for source in resolve_files(files)]


def content(source: Source) -> bytes:
    return b"".join(source.upload().chunks())


def one(path: Path) -> Source:
    (source,) = resolve_files(path)
    return source


# ------------------------------------------------------------------------------------------------------------ finding


def test_paths_come_in_many_forms(folder: Path) -> None:
    path = folder / "a.csv"
    for files in (str(path), path, [str(path)], (path,), {path}, iter([path]), {"path": path}, [{"path": str(path)}]):
        (source,) = resolve_files(files)
        assert (source.name, source.location, source.size) == ("a.csv", str(path), 5)
        assert content(source) == b"a.csv"


def test_a_relative_path_and_pattern(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert found(["a.csv", "sub/*.csv"]) == ["a.csv", "d.csv"]


@pytest.mark.parametrize("spec", [dict, MappingProxyType])
def test_a_mapping_renames(folder: Path, spec: Callable[[dict[str, str]], Any]) -> None:
    assert found([spec({"path": str(folder / "a.csv"), "name": "März.csv"}), str(folder / "b.csv")]) == [
        "März.csv",
        "b.csv",
    ]


def test_a_file_uri(folder: Path) -> None:
    for uri in (
        f"file://{folder}/sp%20ace%2520.csv",
        f"FILE://localhost{folder}/sp%20ace%2520.csv",
        f"file:{folder}/a.csv",
    ):
        assert found(uri) in (["sp ace%20.csv"], ["a.csv"])
    assert found(f"file://{folder}/?.csv") == ["a.csv", "b.csv"], "a pattern is no query"
    (folder / "x#1?.txt").write_text("")
    assert found([f"file://{folder}/x#1?.txt"]) == ["x#1?.txt"]
    assert content(one(Path(f"{folder}/a.csv"))) == b"a.csv"


def test_what_is_encoded_in_a_file_uri_is_no_pattern(folder: Path) -> None:
    for name in ("[ab].csv", "a*.csv"):
        assert found((folder / name).as_uri()) == [name], "although it matches others, as a pattern"
        (folder / name).unlink()
        with pytest.raises(SourceMissing):
            resolve_files((folder / name).as_uri())


def test_a_pattern_in_a_file_uri_has_no_encoded_wildcards(folder: Path) -> None:
    with pytest.raises(InvalidDelivery, match="must not contain %2a"):
        resolve_files(f"file://{folder}/a%2a.*")


def test_a_path_that_resembles_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:/a.txt").write_text("local")
    assert content(one(Path(f"{tmp_path}/s3://a.txt"))) == b"local"
    assert found(f"{tmp_path}/s3://a.txt") == ["a.txt"]


# ------------------------------------------------------------------------------------------------------- in plain words


def test_files_are_normalized_equally_in_each_try(folder: Path) -> None:
    a, b = str(folder / "a.csv"), str(folder / "b.csv")
    renamed = {"path": a, "name": "x"}
    for files, plain in [
        ({b, a}, [a, b]),
        (frozenset({folder / "b.csv", a}), [a, b]),
        ((path for path in (b, a)), [b, a]),
        (map(Path, (b, a)), [b, a]),
        ([b, a], [b, a]),
        (Path(a), [a]),
        (MappingProxyType({"path": Path(a), "name": "x"}), [renamed]),
        ([{"name": "x", "path": a}], [renamed]),
        ([{"path": a}], [{"path": a}]),
        (None, []),
        ("", []),
    ]:
        once = normalize_files(files)
        assert once == plain
        assert json.loads(json.dumps(once)) == once
        assert normalize_files(once) == once


def test_object_storage_is_a_text_like_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    store.attach("s3", conn_id="conn", fs=MemoryFileSystem())
    (folder / "%41.csv").write_text("%41")
    local = ObjectStoragePath(f"file://{folder}/%41.csv")
    assert normalize_files(ObjectStoragePath("s3://conn@b/a b.csv")) == ["s3://conn@b/a b.csv"]
    assert normalize_files([ObjectStoragePath("s3://conn@b/a b.csv"), local]) == [
        "s3://conn@b/a b.csv",
        f"{folder}/%41.csv",
    ]
    assert found(local) == ["%41.csv"]


@given(st.sets(st.text(st.characters(exclude_characters="\0"), min_size=1)))
def test_a_set_has_one_order(paths: set[str]) -> None:
    assert normalize_files(paths) == normalize_files(frozenset(paths)) == sorted(paths)


# ------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("nothing", [[], (), None, "", [""], {"path": ""}, [None]])
def test_a_delivery_without_files_is_rejected(nothing: Any) -> None:
    with pytest.raises(InvalidDelivery):
        resolve_files(nothing)


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        [7],
        [["a"]],
        [b"/etc/hosts"],
        "a\0b",
        {"name": "x"},
        {"path": 7},
        {"path": None, "name": "x"},
        {"path": "/etc/hosts", "name": 7},
        {"path": "/etc/hosts", "rename": "x"},
        {"path": "/etc/hosts", "name": ""},
        {"path": "/etc/hosts", "name": None},
        {"content": "x", "name": ""},
    ],
    ids=repr,
)
def test_an_invalid_file_specification_is_rejected(wrong: Any) -> None:
    with pytest.raises(InvalidDelivery):
        resolve_files(wrong)


def test_what_cannot_be_read_is_refused_before_anything_is_sent(folder: Path) -> None:
    os.mkfifo(folder / "fifo.csv")
    (folder / "dangling.csv").symlink_to(folder / "gone")
    for path, reason in {
        "gone.csv": "No such file",
        "sub": "is a folder",
        "fifo.csv": "is not a file",
        "dangling.csv": "No such file",
        "dangl*.csv": "No such file",
        "a.csv/b": "Not a directory",
        "sub/" + "x/" * 2_100 + "f": "File name too long",
    }.items():
        with pytest.raises(SourceUnreadable, match=reason):
            resolve_files([folder / "a.csv", folder / path])


def test_a_file_without_permission_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything, so no real file will do
    with pytest.raises(SourceUnreadable, match="Permission denied"):
        resolve_files(folder / "a.csv")


@pytest.mark.parametrize("pattern", ["*.pdf", "none/*", "[z]*"])
def test_a_pattern_that_finds_nothing_is_refused(folder: Path, pattern: str) -> None:
    with pytest.raises(InvalidDelivery, match="no file matches"):
        resolve_files([folder / "a.csv", folder / pattern])


#: Which extra reads a scheme.
EXTRAS = {"s3": "s3", "gs": "gcs", "abfs": "azure", "sftp": "sftp"}


@pytest.mark.parametrize("key", ["a.csv", "*.csv"])
@pytest.mark.parametrize(
    ("scheme", "advice"),
    [
        *(
            (scheme, rf"pip install 'airflow-provider-outbound-transfer\[{extra}\]'")
            for scheme, extra in EXTRAS.items()
        ),
        ("hdfs", "install the Airflow provider that does"),
    ],
)
def test_a_store_whose_provider_is_not_installed_says_what_to_install(
    scheme: str, advice: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "_register_filesystems", dict)
    with pytest.raises(SourceUnreadable, match=rf"no provider that is installed reads {scheme}://: {advice}"):
        resolve_files(f"{scheme}://nobody@no-bucket-of-this-test/{key}")


def test_one_name_for_many_files_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidDelivery, match="2 files, which cannot all be named 'x'"):
        resolve_files({"path": str(folder / "?.csv"), "name": "x"})
    assert found({"path": str(folder / "*.txt"), "name": "x"}) == ["x"]


def test_two_files_of_one_name_are_refused_with_both_places(folder: Path) -> None:
    (folder / "sub/a.csv").write_text("another")
    with pytest.raises(InvalidDelivery, match="one name") as refused:
        resolve_files([folder / "a.csv", folder / "sub/a.csv", folder / "b.csv"])
    assert f"{folder}/a.csv" in str(refused.value)
    assert f"{folder}/sub/a.csv" in str(refused.value)
    assert "b.csv" not in str(refused.value)
    with pytest.raises(InvalidDelivery, match="one name"):
        resolve_files([folder / "a.csv", {"path": folder / "b.csv", "name": "a.csv"}])
    with pytest.raises(InvalidDelivery, match="one name"):
        resolve_files([{"path": folder / "a.csv", "name": "é"}, {"path": folder / "b.csv", "name": "e\u0301"}])


def test_a_file_that_is_found_twice_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidDelivery, match="one name.* that a path and a pattern find") as refused:
        resolve_files([folder / "a.csv", f"{folder}/?.csv", folder / "c.txt"])
    assert "b.csv" not in str(refused.value)
    assert found([folder / "a.csv", {"path": folder / "a.csv", "name": "again.csv"}]) == ["a.csv", "again.csv"]


def test_a_name_that_the_service_could_not_keep_is_refused(folder: Path) -> None:
    for name in ("a/b", "a\nb", ".."):
        with pytest.raises(NameRefused):
            resolve_files({"path": folder / "a.csv", "name": name})
    (folder / "line\nbreak").write_text("")
    with pytest.raises(NameRefused, match="control character"):
        resolve_files(folder / "line*")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("")
    with pytest.raises(NameRefused, match="not valid Unicode"):
        resolve_files(os.fsdecode(os.fsencode(folder) + b"/\xff"))


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7])
def test_every_byte_is_read_once_each_time(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    source, progress = one(tmp_path / "f"), []
    upload = source.upload(progress.append)
    assert b"".join(upload.chunks()) == data
    assert b"".join(upload.chunks()) == data, "a repeat starts from the first byte"
    assert (upload.name, upload.size) == ("f", size)
    assert progress == sorted(progress[: len(progress) // 2]) * 2
    assert progress[-1:] == ([size] if size else [])
    source.check_unchanged()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(300 * 1024 * 1024)
    source = one(tmp_path / "sparse")
    tracemalloc.start()
    try:
        assert sum(len(chunk) for chunk in source.upload().body()) == source.size
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


def rewrite(path: Path, data: bytes) -> None:
    """Write with a time stamp that differs, however coarse the clock of the file system is."""
    path.write_bytes(data)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_000))


def replace_by_another(path: Path) -> None:
    stamp = path.stat()
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "grows": lambda path: rewrite(path, b"x" * (4 * CHUNK_BYTES)),
    "shrinks": lambda path: rewrite(path, b"x" * CHUNK_BYTES),
    "is emptied": lambda path: rewrite(path, b""),
    "is rewritten": lambda path: rewrite(path, b"y" * (3 * CHUNK_BYTES)),
    "is replaced": replace_by_another,
    "vanishes": Path.unlink,
    "becomes a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_found_out(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * (3 * CHUNK_BYTES))
    source, read = one(path), 0
    chunks = source.upload().chunks()
    read += len(next(chunks))
    CHANGES[change](path)
    try:
        read += sum(map(len, chunks))
    except SourceChanged as error:
        # Reading may or may not find it out; the check after it must.
        assert re.search("shrank|longer", str(error))
    assert read <= source.size, "never more than was declared"
    with pytest.raises(SourceChanged):
        source.check_unchanged()


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_before_it_is_read_is_not_read(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * (3 * CHUNK_BYTES))
    source = one(path)
    CHANGES[change](path)
    with pytest.raises(SourceChanged, match=r"changed|vanished"):
        next(source.upload().chunks())


def test_a_link_that_leads_elsewhere_while_it_is_opened_is_not_read(tmp_path: Path, monkeypatch) -> None:
    """And back before anything else looks at the path."""
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "current"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    link.symlink_to(old)
    source = one(link)
    monkeypatch.setattr(LocalFile, "open", lambda _: new.open("rb", buffering=0))
    with pytest.raises(SourceChanged, match="changed while it was delivered"):
        next(source.upload().chunks())


def test_a_fingerprint_distinguishes_contents(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    first, again = one(path), one(path)
    assert (first.size, first.fingerprint) == (again.size, again.fingerprint)
    rewrite(path, b"y")
    assert one(path).fingerprint != first.fingerprint


def test_a_disk_error_while_reading_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    (tmp_path / "f").write_bytes(b"x")
    source = one(tmp_path / "f")
    monkeypatch.setattr(LocalFile, "open", lambda file: Failing(file.path))
    with pytest.raises(SourceUnreadable, match=f"{tmp_path}/f cannot be read.*Input/output error"):
        content(source)


def test_a_file_that_is_said_to_be_empty_and_is_not_is_refused(tmp_path: Path) -> None:
    """Such as those of /proc, which are made while they are read."""
    said = "/proc/self/status is longer than the 0 bytes"
    for files in ("/proc/self/status", "/proc/self/statu[s]"):
        with pytest.raises(SourceChanged, match=said):
            resolve_files(files)
    (tmp_path / "link").symlink_to("/proc/self/status")
    with pytest.raises(SourceChanged, match="link is longer than the 0 bytes"):
        resolve_files(tmp_path / "link")
    (tmp_path / "empty").touch()
    assert content(one(tmp_path / "empty")) == b""


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_a_file_that_is_longer_than_it_says_never_goes_out_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    source = one(path)
    path.write_bytes(b"x" * (size + 1))
    monkeypatch.setattr(LocalFile, "stat", lambda *_: (source.size, source.fingerprint))
    sent: list[int] = []
    with pytest.raises(SourceChanged, match=f"longer than the {size} bytes"):
        sent.extend(map(len, source.upload().chunks()))
    assert sum(sent) < size or not size, "the service gets a part, and discards it"


def descriptors() -> list[str]:
    """What this process has open."""
    return [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]


def test_nothing_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (3 * CHUNK_BYTES))
    source = one(tmp_path / "f")
    chunks = source.upload().body()
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    del chunks
    assert f"{tmp_path}/f" not in descriptors()
