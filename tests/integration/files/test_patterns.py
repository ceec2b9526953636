"""A pattern sends the files that it matches, or none at all if what it matches is not known."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.io import store as stores
from fsspec.implementations.memory import MemoryFileSystem

TREE = ["a.csv", "b.txt", "x/c.csv", "x/y/d.csv", ".hid.csv", "x/.h/e.csv", "z/f.csv", "x/g"]

#: What each pattern matches, wherever the files are.
MATCHES = {
    "*.csv": ["a.csv"],
    "**/*.csv": ["a.csv", "c.csv", "d.csv", "f.csv"],
    "x/*": ["c.csv", "g"],
    "*/*.csv": ["c.csv", "f.csv"],
    "x/**": ["c.csv", "d.csv", "g"],
    "[ab].*": ["a.csv", "b.txt"],
    "[!a].*": ["b.txt"],
    "x/?/*.csv": ["d.csv"],
    "?/*.csv": ["c.csv", "f.csv"],
    "x/y/*.csv": ["d.csv"],
    "**/y/*": ["d.csv"],
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return str(tmp_path)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in memory, attached to Airflow with and without a connection."""
    monkeypatch.setattr(stores, "_STORE_CACHE", {})
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    files = Bucket()
    for conn_id in (None, "conn"):
        stores.attach("memory", conn_id=conn_id, fs=files)
    for name in TREE:
        if "/." not in f"/{name}":  # whether a store hides a name is its own affair
            files.pipe(f"/bucket/{name}", name.encode())
    return "memory://bucket"


class Bucket(MemoryFileSystem):
    """A store in memory, of which folders can be closed."""

    cachable = False
    closed = ""

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if self.closed and path.rstrip("/").endswith(self.closed):
            raise PermissionError(13, "Access Denied", path)
        return super().ls(path, detail=detail, **options)


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_pattern_sends_what_it_matches(deliver: Callable[..., Any], folder: str, pattern: str) -> None:
    sent = deliver(f"{folder}/{pattern}")
    assert sorted(sent) == MATCHES[pattern]
    assert all(content.decode().endswith(name) for name, content in sent.items())


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_pattern_sends_the_same_from_a_store(deliver: Callable[..., Any], bucket: str, pattern: str) -> None:
    sent = deliver(f"{bucket}/{pattern}")
    assert sorted(sent) == MATCHES[pattern]
    assert all(content.decode().endswith(name) for name, content in sent.items())


def test_a_store_is_reached_by_the_connection_in_its_address(deliver: Callable[..., Any], bucket: str) -> None:
    assert deliver(["memory://conn@bucket/*.csv", "memory://conn@bucket/b.txt"]) == {
        "a.csv": b"a.csv",
        "b.txt": b"b.txt",
    }


def test_hidden_files_are_sent_only_if_the_pattern_says_so(deliver: Callable[..., Any], folder: str) -> None:
    assert sorted(deliver(f"{folder}/.*")) == [".hid.csv"]
    assert sorted(deliver(f"{folder}/x/.h/*")) == ["e.csv"]


def test_a_relative_pattern_is_of_the_workers_folder(
    deliver: Callable[..., Any], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert sorted(deliver(["*.csv", "x/y/*"])) == ["a.csv", "d.csv"]


@pytest.mark.parametrize("pattern", ["*.pdf", "none/*", "none/deep/*.csv", "a.csv/*", "[q]*", "x/y/z/**"])
def test_a_pattern_that_matches_nothing_sends_nothing_else_either(
    refused: Callable[..., str], folder: str, pattern: str
) -> None:
    assert f"no file matches '{folder}/{pattern}'" in refused([f"{folder}/a.csv", f"{folder}/{pattern}"])


@pytest.mark.parametrize("pattern", ["*.pdf", "none/*.csv", "a.csv/*"])
def test_a_pattern_of_a_store_that_matches_nothing_is_named(
    refused: Callable[..., str], bucket: str, pattern: str
) -> None:
    assert f"no file matches '{bucket}/{pattern}'" in refused(f"{bucket}/{pattern}")


def test_a_pattern_of_a_store_never_sends_files_of_this_machine(
    refused: Callable[..., str], bucket: str, folder: str
) -> None:
    assert "no file matches" in refused(f"{bucket}{folder}/*.csv")


@pytest.mark.parametrize(("closed", "pattern"), [("y", "**/*.csv"), ("y", "x/y/*"), ("x", "*/*.csv"), ("bucket", "*")])
def test_a_folder_of_a_store_that_cannot_be_listed_fails_the_delivery(
    refused: Callable[..., str], bucket: str, monkeypatch: pytest.MonkeyPatch, closed: str, pattern: str
) -> None:
    monkeypatch.setattr(Bucket, "closed", closed)
    assert "Access Denied" in refused(f"{bucket}/{pattern}")


def test_the_name_of_a_bucket_is_no_pattern(refused: Callable[..., str], bucket: str) -> None:
    assert "only what follows the first / may be a pattern" in refused("memory://buck*/a.csv")


def test_a_link_is_followed_but_not_in_circles(deliver: Callable[..., Any], folder: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/linked.csv").touch()
    (tmp_path / "x/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "x/y/back").symlink_to(tmp_path / "x/y")
    assert sorted(deliver(f"{folder}/x/**/l*.csv")) == ["linked.csv"]
    assert sorted(deliver(f"{folder}/x/y/**/*.csv")) == ["d.csv"]
    (tmp_path / "x/y/back").unlink()
    (tmp_path / "x/y/up").symlink_to(tmp_path / "x")
    assert sorted(deliver(f"{folder}/x/y/**/d.csv")) == ["d.csv"]


def test_a_link_that_leads_nowhere_is_a_missing_file(refused: Callable[..., str], folder: str, tmp_path: Path) -> None:
    (tmp_path / "x/gone.csv").symlink_to("nowhere")
    assert "x/gone.csv is not there" in refused(f"{folder}/x/*.csv")


@pytest.mark.parametrize("where", ["folder", "bucket"])
@pytest.mark.parametrize(
    ("names", "pattern", "literal"), [(["*.pdf", "p.pdf"], "*.pdf", "[*].pdf"), (["[p].1", "p.1"], "[p].1", "[[]p].1")]
)
def test_a_text_that_is_a_name_and_a_pattern_is_refused_with_how_each_is_meant(
    request: pytest.FixtureRequest,
    deliver: Any,
    refused: Any,
    bucket: str,
    where: str,
    names: Any,
    pattern: str,
    literal: str,
) -> None:
    folder = request.getfixturevalue(where)
    for name in names:
        if where == "folder":
            Path(folder, name).touch()
        else:
            Bucket().pipe(f"/bucket/{name}", b"")
    assert "For that file alone, write each of * ? [ as [*] [?] [[]" in refused(f"{folder}/{pattern}")
    assert list(deliver(f"{folder}/{literal}")) == [names[0]]


def _send_as_nobody(deliver: Callable[..., Any], files: str, answer: Any) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        answer.send(repr(sorted(deliver(files))))
    except BaseException as error:
        answer.send(repr(error))


@pytest.mark.parametrize(
    ("pattern", "closed"),
    [("*/*.csv", "b"), ("**", "b"), ("**/*.csv", "b/deep"), ("b/deep/*.csv", "b"), ("*/deep/*.csv", "b"),
     ("*/link/*.csv", "c"), ("*.csv", "."), ("z.csv", "z.csv"), ("a/x.csv", "a")],
)  # fmt: skip
def test_a_file_or_folder_without_permission_fails_the_delivery(
    deliver: Callable[..., Any], sandbox: Any, pattern: str, closed: str
) -> None:
    """By a process that permissions hold for."""
    folder = tempfile.mkdtemp()  # not in pytest's own folder, which is closed to others
    try:
        os.chmod(folder, 0o755)
        for path in ("a/x.csv", "b/w.csv", "b/deep/y.csv", "c/real/v.csv", "z.csv"):
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            Path(folder, path).touch()
        Path(folder, "a/link").symlink_to(f"{folder}/c/real")
        os.chmod(f"{folder}/{closed}", 0)
        answers, answer = multiprocessing.Pipe(duplex=False)
        arguments = (deliver, f"{folder}/{pattern}", answer)
        child = multiprocessing.get_context("fork").Process(target=_send_as_nobody, args=arguments)
        child.start()
        said = answers.recv()
        child.join()
        assert "Permission" in said
        assert folder in said
        sandbox.assert_nothing_sent()
    finally:
        os.chmod(f"{folder}/{closed}", 0o755)
        shutil.rmtree(folder)
