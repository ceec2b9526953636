"""Patterns: the same files as :mod:`glob` and fsspec find, but an error where these leave out what gives no answer."""

from __future__ import annotations

import glob
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import store as stores
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outbound_transfer.files.globs import match_local, match_remote
from outbound_transfer.protocol.errors import InvalidDelivery

NAMES = st.sampled_from(["a", "b", "ab", "A", ".a", "..a", "a.csv", ".b.csv", "ä", "-", "]", "!"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.sampled_from(
    ["a", "b", "ab", "a.csv", "*", "?", "??", "a*", "*b", "*.csv", ".*", "[ab]", "[!a]*", "[]-]", "[", "**", "*a*"]
)
FEW = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def grow(folder: Path, paths: list[str], links: dict[str, str]) -> None:
    """Make files, and links that lead to what is there, or nowhere; what cannot be made is left out."""
    folder.mkdir(parents=True)
    for path in paths:
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        except OSError:
            continue
    for number, (link, target) in enumerate(links.items()):
        # Only to what is no link and has none in it, so that none leads back.
        source = folder.parent / "shared" / str(number) / target
        source.parent.mkdir(parents=True, exist_ok=True)
        if number % 3:
            source.touch()
        try:
            (folder / link).parent.mkdir(parents=True, exist_ok=True)
            (folder / link).symlink_to(source if number % 2 else source.parent)
        except OSError:
            continue


def found(find: Callable[[], list[Any]]) -> list[Any]:
    try:
        return find()
    except InvalidDelivery as nothing:
        assert "no file matches" in str(nothing)
        return []


@FEW
@given(
    paths=st.lists(PATHS, max_size=8),
    links=st.dictionaries(PATHS, NAMES, max_size=3),
    parts=st.lists(PARTS, min_size=1, max_size=4),
    relative=st.booleans(),
)
@example(paths=["a/b/ab"], links={"b": "a"}, parts=["**", "b", "**", "a*"], relative=False)
@example(paths=["a"], links={}, parts=["a", "*"], relative=True)
@example(paths=["a"], links={}, parts=["..", "*", "*"], relative=True)
def test_a_tree_without_faults_gives_what_glob_finds(
    tmp_path: Path, paths: list[str], links: dict[str, str], parts: list[str], relative: bool
) -> None:
    folder = tmp_path / "as/many/as/parts"  # so that ".." leads to nothing of others
    grow(folder, paths, links)
    pattern = "/".join(parts if relative and parts[0] else [str(folder), *parts])
    before = os.getcwd()
    os.chdir(folder)
    try:
        if glob.has_magic(pattern):
            # Of "file/**" it makes "file/", which is nothing that is there.
            expected = {p for p in glob.glob(pattern, recursive=True) if not (os.path.isdir(p) or p.endswith("/"))}
            assert found(lambda: match_local(pattern)) == sorted(expected)
    finally:
        os.chdir(before)
        shutil.rmtree(tmp_path / "as")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store in memory."""
    monkeypatch.setattr(stores, "_STORE_CACHE", {})
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    stores.attach("memory", fs=MemoryFileSystem())
    return ObjectStoragePath("memory://bucket/")


@FEW
@given(keys=st.sets(PATHS, max_size=8), parts=st.lists(PARTS, min_size=1, max_size=4))
@example(keys={"b/.a"}, parts=["b", "*"])
def test_a_store_without_faults_gives_what_fsspec_finds(store: Any, keys: set[str], parts: list[str]) -> None:
    # Of two of one name, a folder and an object, fsspec finds one.
    keys = {key for key in keys if not any(other.startswith(f"{key}/") for other in keys)}
    store.fs.store.clear()
    for key in keys:
        store.fs.pipe(f"/bucket/{key}", b"")
    pattern = "/".join(parts)
    if not glob.has_magic(pattern):
        return
    matches = store.fs.glob(f"/bucket/{pattern}", detail=True).items()
    expected = {name.removeprefix("/bucket/") for name, info in matches if info["type"] == "file"}

    paths = found(lambda: match_remote(f"memory://bucket/{pattern}", store, pattern))

    assert [path.path.removeprefix("/bucket/") for path in paths] == sorted(expected)


# ---------------------------------------------------------------------------------------------------- names or patterns


def local_tree(folder: Path, names: list[str]) -> Callable[[str], list[str]]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return lambda pattern: [path.removeprefix(f"{folder}/") for path in match_local(f"{folder}/{pattern}")]


def remote_tree(store: Any, names: list[str]) -> Callable[[str], list[str]]:
    for name in names:
        store.fs.pipe(f"/bucket/{name}", b"")
    uri = "memory://bucket/"
    return lambda pattern: [p.path.removeprefix("/bucket/") for p in match_remote(f"{uri}{pattern}", store, pattern)]


@pytest.fixture(params=["local", "remote"])
def tree(request: pytest.FixtureRequest, tmp_path: Path, store: Any) -> Callable[..., Callable[[str], list[str]]]:
    """Make files; the result says which of them match a pattern."""
    return lambda *names: (
        local_tree(tmp_path, list(names)) if request.param == "local" else remote_tree(store, list(names))
    )


@pytest.mark.parametrize(
    ("names", "pattern", "literal"),
    [
        (["*.pdf", "a.pdf"], "*.pdf", "[*].pdf"),
        (["[a].csv", "a.csv"], "[a].csv", "[[]a].csv"),
        (["a?", "ab"], "a?", "a[?]"),
        (["[a]/*", "a/x"], "[a]/*", "[[]a]/[*]"),
        (["a/**", "a/b/c"], "a/**", "a/[*][*]"),
    ],
)
def test_what_is_a_name_and_a_pattern_is_refused(tree: Any, names: list[str], pattern: str, literal: str) -> None:
    find = tree(*names)
    with pytest.raises(
        InvalidDelivery, match=r"is the name of an existing file .* and a pattern that matches others"
    ) as told:
        find(pattern)
    assert repr(literal.removeprefix("a/") if "**" in pattern else literal) in str(told.value)
    assert names[0] in find(literal), "it is said how the name alone is meant"
    assert names[1] not in find(literal) or "/*" in literal


@pytest.mark.parametrize(
    ("names", "pattern", "matches"),
    [
        (["*.pdf", "a.csv"], "*.pdf", ["*.pdf"]),
        (["[a].csv", "b.csv"], "[a].csv", ["[a].csv"]),
        (["[a]/[b]", "a/c"], "[a]/[b]", ["[a]/[b]"]),
    ],
)
def test_a_name_that_could_be_a_pattern_is_found_where_nothing_else_is(
    tree: Any, names: list[str], pattern: str, matches: list[str]
) -> None:
    assert tree(*names)(pattern) == matches


# --------------------------------------------------------------------------------------------------------------- faults


def test_a_link_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    find = local_tree(tmp_path, ["x.csv", "sub/deep/y.csv"])
    for number in range(3):
        (tmp_path / f"sub/deep/back{number}").symlink_to(tmp_path)
        (tmp_path / f"sub/here{number}").symlink_to(".")
    assert find("**/*.csv") == ["sub/deep/y.csv", "x.csv"]
    assert find("sub/**/x.csv") == [f"sub/deep/back{number}/x.csv" for number in range(3)]


def test_a_link_that_leads_nowhere_is_a_file_and_no_folder(tmp_path: Path) -> None:
    find = local_tree(tmp_path, ["a/x.csv"])
    (tmp_path / "gone").symlink_to("nowhere")
    assert find("*") == ["gone"]
    assert find("*/x.csv") == ["a/x.csv"]
    assert find("**/x.csv") == ["a/x.csv"]


@pytest.mark.parametrize("root", ["none", "none/deep", "file", "gone"])
def test_missing_folder_is_reported(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(InvalidDelivery, match=f"no file matches .*there is no folder {tmp_path}/{root}$"):
        match_local(f"{tmp_path}/{root}/*.csv")


def test_a_store_has_no_such_folder(store: Any) -> None:
    store.fs.pipe("/bucket/in/a", b"")
    with pytest.raises(InvalidDelivery, match=r"there is no folder memory:///?bucket/none$"):
        match_remote("memory://bucket/none/*", store, "none/*")


def test_a_folder_between_two_slashes_is_refused(store: Any) -> None:
    with pytest.raises(InvalidDelivery, match="two slashes"):
        match_remote("memory://bucket/in//*.csv", store, "in//*.csv")


def _as_nobody(folder: str, pattern: str, answer: Any) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        answer.send(match_local(f"{folder}/{pattern}"))
    except BaseException as error:
        answer.send(repr(error))


@pytest.mark.parametrize(
    ("pattern", "closed"),
    [
        ("*/*.csv", "b"),
        ("**", "b"),
        ("**/*.csv", "b/deep"),
        ("b/deep/*.csv", "b"),
        ("*/deep/*.csv", "b"),
        ("b*/deep/y.csv", "b/deep"),
        ("*/link/*.csv", "c"),
        ("*.csv", "."),
    ],
)
def test_a_folder_without_permission_fails_the_search(pattern: str, closed: str) -> None:
    """By a process that permissions hold for."""
    # Not in pytest's own folder, which is closed to others.
    folder = tempfile.mkdtemp()
    try:
        os.chmod(folder, 0o755)
        for path in ("a/x.csv", "b/x.csv", "b/deep/y.csv", "c/real/z.csv", "z.csv"):
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            Path(folder, path).touch()
        Path(folder, "a/link").symlink_to(f"{folder}/c/real")
        os.chmod(f"{folder}/{closed}", 0)
        answers, answer = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_as_nobody, args=(folder, pattern, answer))
        child.start()
        said = answers.recv()
        child.join()
        assert "SourceUnreadable" in said
        assert "Permission denied" in said
        assert folder in said
    finally:
        os.chmod(f"{folder}/{closed}", 0o755)
        shutil.rmtree(folder)
