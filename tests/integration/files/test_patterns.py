"""A pattern sends the files that it matches, or none at all if what it matches is not known."""

from __future__ import annotations

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
    monkeypatch.setattr(stores, "_STORE_CACHE", {})
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    files = MemoryFileSystem()
    stores.attach("memory", fs=files)
    for name in TREE:
        if "/." not in f"/{name}":  # whether a store hides a name is its own affair
            files.pipe(f"/bucket/{name}", name.encode())
    return "memory://bucket"


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_pattern_sends_what_it_matches(deliver: Callable[..., Any], place: str, pattern: str) -> None:
    sent = deliver(f"{place}/{pattern}")
    assert sorted(sent) == MATCHES[pattern]
    assert all(content.decode().endswith(name) for name, content in sent.items())


def test_a_pattern_may_be_of_hidden_files_or_of_the_workers_folder(deliver, folder, monkeypatch) -> None:
    assert sorted(deliver([f"{folder}/.*", f"{folder}/x/.h/*"])) == [".hid.csv", "e.csv"]
    monkeypatch.chdir(folder)
    assert sorted(deliver(["*.csv", "x/y/*"])) == ["a.csv", "d.csv"]


@pytest.mark.parametrize("pattern", ["*.pdf", "none/*", "none/deep/*.csv", "a.csv/*", "[q]*", "x/y/z/**"])
def test_a_pattern_that_matches_nothing_sends_nothing_else_either(refused, place, pattern) -> None:
    assert f"no file matches '{place}/{pattern}'" in refused([f"{place}/a.csv", f"{place}/{pattern}"])


def test_a_pattern_of_a_store_is_of_its_files_alone_and_not_of_its_name(refused, bucket, folder) -> None:
    assert "no file matches" in refused(f"{bucket}{folder}/*.csv"), "not those of this machine"
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
    assert "x/gone.csv does not exist" in refused(f"{folder}/x/*.csv")


@pytest.mark.parametrize(
    ("names", "pattern", "literal"), [(["*.pdf", "p.pdf"], "*.pdf", "[*].pdf"), (["[p].1", "p.1"], "[p].1", "[[]p].1")]
)
def test_a_text_that_is_a_name_and_a_pattern_is_refused_with_how_each_is_meant(
    deliver: Any, refused: Any, place: str, names: list[str], pattern: str, literal: str
) -> None:
    for name in names:
        MemoryFileSystem().pipe(f"/bucket/{name}", b"") if "://" in place else Path(place, name).touch()
    assert "For that file alone, write each of * ? [ as [*] [?] [[]" in refused(f"{place}/{pattern}")
    assert list(deliver(f"{place}/{literal}")) == [names[0]]
