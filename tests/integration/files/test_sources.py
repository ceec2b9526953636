"""Which bytes are sent under which name, whatever a file is named by; and what ends a delivery before it is created."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import fs as file_systems
from airflow.sdk.io import store as stores
from fsspec.implementations.memory import MemoryFileSystem

from outbound_transfer.exceptions import SourceChanged, SourceMissing, SourceUnreadable

Deliver = Callable[..., dict[str, bytes]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The worker's folder, with names that a pattern or a URI could be taken for."""
    names = ["a.csv", "b.csv", "[ab].csv", "a*.csv", "sp ace%20.csv", "%41.csv", "x#1?.txt", "sub/d.csv", "s3:/a.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FORMS: dict[str, Callable[[Path], Any]] = {
    "text": str,
    "path": lambda path: path,
    "list": lambda path: [str(path)],
    "tuple": lambda path: (path,),
    "set": lambda path: {path},
    "iterator": lambda path: iter([path]),
    "mapping": lambda path: {"path": path},
    "list of mappings": lambda path: [{"path": str(path)}],
    "read-only mapping": lambda path: MappingProxyType({"path": str(path)}),
    "relative path": lambda path: path.name,
    "URI": lambda path: path.as_uri(),
    "URI of this host": lambda path: f"FILE://localhost{path}",
    "short URI": lambda path: f"file:{path}",
    "object storage": lambda path: ObjectStoragePath(f"file://{path}"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_may_be_named_in_any_form(deliver: Deliver, folder: Path, form: str) -> None:
    assert deliver(FORMS[form](folder / "a.csv")) == {"a.csv": b"a.csv"}


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (lambda folder: f"file://{folder}/sp%20ace%2520.csv", ["sp ace%20.csv"]),
        (lambda folder: f"file://{folder}/x#1?.txt", ["x#1?.txt"]),
        (lambda folder: f"file://{folder}/?.csv", ["a.csv", "b.csv"]),
        (lambda folder: f"file://{folder}/a%2a.*", ["a*.csv"]),
        (lambda folder: (folder / "[ab].csv").as_uri(), ["[ab].csv"]),
        (lambda folder: (folder / "a*.csv").as_uri(), ["a*.csv"]),
        (lambda folder: ObjectStoragePath(f"file://{folder}/%41.csv"), ["%41.csv"]),
        (lambda folder: f"{folder}/s3://a.txt", ["a.txt"]),
        (lambda folder: {"path": folder / "a.csv", "name": "März.csv"}, ["März.csv"]),
        (lambda folder: [folder / "a.csv", {"path": folder / "a.csv", "name": "again.csv"}], ["a.csv", "again.csv"]),
        (lambda folder: {"path": f"{folder}/sub/*", "name": "only.csv"}, ["only.csv"]),
    ],
)
def test_a_name_is_sent_as_it_is_meant(deliver: Deliver, folder: Path, files: Any, names: list[str]) -> None:
    assert sorted(deliver(files(folder))) == names


def test_a_missing_file_with_an_encoded_name_is_not_a_pattern(refused: Callable[..., str], folder: Path) -> None:
    (folder / "[ab].csv").unlink()
    assert "does not exist" in refused((folder / "[ab].csv").as_uri())
    assert "no file matches" in refused(f"file://{folder}/b%2a.*")


@pytest.mark.parametrize("name", ["plain", "[ab].csv", "sp ace #1?%20.csv", "ends in?", "ends in#", "sub/?#"])
def test_an_object_is_sent_under_its_own_name(deliver: Deliver, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(stores, "_STORE_CACHE", {})
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    stores.attach("memory", fs=MemoryFileSystem())
    MemoryFileSystem().pipe(f"/bucket/{name}", name.encode())
    assert deliver(f"memory://bucket/{name}") == {name.split("/")[-1]: name.encode()}
    assert deliver(ObjectStoragePath("memory://bucket/") / name) == {name.split("/")[-1]: name.encode()}


WRONG = [
    [], (), None, "", [""], {"path": ""}, [None],
    7, [7], [["a"]], [b"/etc/hosts"], "a\0b", {"name": "x"}, {"path": 7}, {"path": None, "name": "x"},
    {"path": "/etc/hosts", "name": 7}, {"path": "/etc/hosts", "rename": "x"}, {"path": "/etc/hosts", "name": ""},
    {"path": "/etc/hosts", "name": None}, {"content": "x", "name": ""},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_files_argument_that_names_no_file_is_refused(refused: Callable[..., str], wrong: Any) -> None:
    assert refused(wrong, _airflow_from_mapped=True)


MISSING = {
    "gone.csv": "does not exist",
    "dangling.csv": "does not exist",
    "sub": "is a folder. For the files in it, use a pattern",
    "fifo.csv": "is not a file",
    "a.csv/b": "Not a directory",
    "sub/" + "x/" * 2_100 + "f": "File name too long",
}


@pytest.mark.parametrize("path", MISSING, ids=lambda path: path[:20])
def test_an_unreadable_source_is_named_before_anything_is_created(refused, folder, path) -> None:
    os.mkfifo(folder / "fifo.csv")
    (folder / "dangling.csv").symlink_to(folder / "gone")
    assert MISSING[path] in refused([folder / "a.csv", folder / path])
    error = refused.error  # type: ignore[attr-defined]
    assert isinstance(error, SourceMissing if MISSING[path] == "does not exist" else SourceUnreadable)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("name", ["", "/none.csv", "/*.pdf", "/link.csv"])
def test_a_path_that_is_not_utf_8_is_told_in_a_text_that_any_log_takes(refused, folder, name) -> None:
    (path := folder / os.fsdecode(b"\xff\xfe")).mkdir()
    (path / "link.csv").symlink_to("nowhere")
    assert refused(f"{path}{name}").encode().count(b"udcff")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["a.csv", "sub/a.csv", "b.csv"], ["same name", "/a.csv", "/sub/a.csv"]),
        (["a.csv", {"path": "b.csv", "name": "a.csv"}], ["same name", "/b.csv"]),
        ([{"path": "a.csv", "name": "é"}, {"path": "b.csv", "name": "e\u0301"}], ["same name"]),
        (["a.csv", "?.csv"], ["same name", "if a path and a pattern match the same file"]),
        ([{"path": "?.csv", "name": "x"}], ["2 files, which cannot all be named 'x'"]),
    ],
)
def test_two_files_with_the_same_name_are_refused_with_both_paths(refused, folder, files, said) -> None:
    (folder / "sub/a.csv").write_text("another")
    told = refused(files)
    assert all(words.lstrip("/") in told for words in said)


@pytest.mark.parametrize("files", ["/proc/self/status", "/proc/self/statu[s]", "link"])
def test_a_file_that_says_to_be_empty_and_is_not_is_refused(deliver, sandbox, folder, files) -> None:
    """Such as those of /proc, which are made while they are read."""
    (folder / "link").symlink_to("/proc/self/status")
    with pytest.raises(SourceChanged, match="is longer than the 0 bytes"):
        deliver(files)
    sandbox.assert_nothing_sent()
    (folder / "empty").touch()
    assert deliver("empty") == {"empty": b""}


@pytest.mark.parametrize(
    ("scheme", "extra"), [("s3", "s3"), ("gs", "gcs"), ("abfs", "azure"), ("sftp", "sftp"), ("hdfs", "")]
)
def test_a_store_that_nothing_reads_says_what_to_install(refused, monkeypatch, scheme, extra) -> None:
    monkeypatch.setattr(file_systems, "_register_filesystems", dict)
    advice = f"pip install 'airflow-provider-outbound-transfer[{extra}]'" if extra else "install the Airflow provider"
    for key in ("a.csv", "*.csv"):
        told = refused(f"{scheme}://nobody@no-bucket-of-this-test/{key}")
        assert f"no installed provider reads {scheme}://" in told
        assert advice in told


def test_a_control_character_does_not_make_a_uri_mean_another_file(refused: Callable[..., str]) -> None:
    for control in "\t\r\n":
        assert "control" in refused(f"memory://bucket/dir/{control}a.csv")
