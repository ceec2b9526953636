"""Searches for files of which some question to the file system gets no answer: on this machine, and in a store
in memory.

Which questions there are is not guessed: a search without faults is watched, and each listing of a folder, each of its
entries and each look at a path is a place for every kind of fault.

The judge knows what :mod:`glob` finds where nothing fails: just these files are found, or the search fails.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol
from unittest import mock

import pytest
from airflow.sdk.io import store
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries import DELIVERY
from support.tasks import SimulatedClock, task_instance

pytestmark = pytest.mark.slow

Deliver = Callable[[str], list[str]]

FILES = (
    "in/top.csv", "in/last.csv", "in/a/a1.csv", "in/a/a2.csv", "in/b/b1.csv", "in/b/deep/b2.csv",
    "in/b/deep/b3.txt", "in/c/deep/c1.csv", "in/linked/l1.csv",
)  # fmt: skip
#: A folder that only a link leads to, where there are links.
LINK, TARGET = "in/linked", "elsewhere"
PATTERNS = ("in/*.csv", "in/*/*.csv", "in/*/deep/*2.csv", "in/[bc]/deep/*", "in/**/*.csv", "in/**", "*/a/a*")


@dataclass(frozen=True, order=True)
class Question:
    """Something that is asked of a file system: of ``path``, below the tree's root; ``number`` counts answers in it."""

    what: str
    path: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.path}" + (f" ({self.number})" if self.number else "")


@dataclass(frozen=True)
class ListingFault:
    """A question that is answered with an error, once."""

    pattern: str
    question: Question
    error: str


Ask = Callable[[Question], None]


class SearchedPlace(Protocol):
    """Where the tree is.

    :ivar root: what a pattern is appended to.
    :ivar errors: by name, what a question may be answered with.
    """

    root: str
    errors: dict[str, Callable[[], Exception]]

    def watched(self, ask: Ask) -> AbstractContextManager[None]:
        """Let ``ask`` know of each question before it is answered; what it raises is the answer."""
        ...


def _os_errors(*names: str) -> dict[str, Callable[[], Exception]]:
    numbers = {name: getattr(errno, name) for name in names}
    return {name: lambda number=number: OSError(number, os.strerror(number)) for name, number in numbers.items()}


class LocalPlace:
    """This machine. What the system may keep in a directory's entry is asked, too: not all file systems keep it."""

    errors: ClassVar = _os_errors("EACCES", "EIO", "ESTALE", "ENOENT")

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)
        (folder / LINK).parent.mkdir(parents=True)
        (folder / TARGET).mkdir()
        (folder / LINK).symlink_to(folder / TARGET)
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(name.encode())

    @contextmanager
    def watched(self, ask: Ask) -> Iterator[None]:
        scandir = os.scandir

        def ask_of(what: str, path: Any, number: int = 0) -> None:
            # Whatever else this process looks at is not meant.
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(f"{self.root}/"):
                ask(Question(what, os.path.relpath(path, self.root), number))

        def looked(look: Callable[..., Any]) -> Callable[..., Any]:
            def asking(path: Any, *args: Any, **options: Any) -> Any:
                ask_of("look at", path)
                return look(path, *args, **options)

            return asking

        @contextmanager
        def listed(path: Any = ".") -> Iterator[Iterator[_ObservedEntry]]:
            ask_of("list", path)
            with scandir(path) as entries:
                yield (_ObservedEntry(entry, ask_of) for entry in _counted(entries, lambda n: ask_of("list", path, n)))

        with mock.patch.multiple(os, scandir=listed, stat=looked(os.stat), lstat=looked(os.lstat)):
            yield


def _counted(items: Iterator[Any], ask: Callable[[int], None]) -> Iterator[Any]:
    for number, item in enumerate(items, 1):
        yield item
        ask(number)


class _ObservedEntry:
    """An entry of a directory, of a file system that does not keep there what the entry is."""

    def __init__(self, entry: os.DirEntry[str], ask: Callable[[str, Any], None]) -> None:
        self._entry, self._ask = entry, ask
        self.name, self.path = entry.name, entry.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        self._ask("look at", self.path)
        return self._entry.is_dir(follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        self._ask("look at", self.path)
        return self._entry.is_symlink()


class _PlainStore(MemoryFileSystem):
    """In memory, searched as fsspec does where a library adds nothing."""

    find = AbstractFileSystem.find


class MemoryPlace:
    """A store whose library has only what fsspec asks of one."""

    errors: ClassVar = {**_os_errors("EACCES", "EIO", "ETIMEDOUT", "ENOENT"), "another": lambda: RuntimeError("broken")}

    def __init__(self) -> None:
        self.root = "memory://bucket"
        self._objects: dict[str, Any] = {}
        with mock.patch.object(MemoryFileSystem, "store", self._objects):
            for name in FILES:
                MemoryFileSystem().pipe(f"/bucket/{name}", name.encode())

    @contextmanager
    def attached(self) -> Iterator[None]:
        """The store, as Airflow sees it."""
        with mock.patch.object(MemoryFileSystem, "store", self._objects), mock.patch.object(store, "_STORE_CACHE", {}):
            store.attach("memory", fs=_PlainStore())
            yield

    @contextmanager
    def watched(self, ask: Ask) -> Iterator[None]:
        ls = MemoryFileSystem.ls

        def asking(fs: MemoryFileSystem, path: str, *args: Any, **options: Any) -> Any:
            ask(Question("list", path.removeprefix("/bucket/")))
            return ls(fs, path, *args, **options)

        with mock.patch.object(MemoryFileSystem, "ls", asking):
            yield


@dataclass
class Plan:
    """What is asked, and what is answered: an error to a question, once."""

    question: Question | None = None
    error: Callable[[], Exception] = Exception
    is_met: bool = False
    asked: dict[Question, None] = field(default_factory=dict)

    def ask(self, question: Question) -> None:
        self.asked[question] = None
        if question == self.question and not self.is_met:
            self.is_met = True
            raise self.error()


def meant(folder: str, pattern: str) -> list[str]:
    """The names that :mod:`glob` finds where nothing fails."""
    matches = glob.glob(f"{folder}/{pattern}", recursive=True)
    return sorted(Path(match).name for match in matches if os.path.isfile(match))


@pytest.fixture
def deliver(connection: str, sandbox: Sandbox) -> Deliver:
    """Deliver what a pattern finds; return the names of the files that were sent."""
    sandbox.patch_account(requests_per_window=1_000_000, outstanding_transfer_limit=1_000_000)
    time = SimulatedClock(sandbox)

    def deliver(pattern: str) -> list[str]:
        task = task_instance(DeliverFilesOperator, time, files=pattern, max_parallel_uploads=1, **DELIVERY)
        return sorted(file["name"] for file in task.run()["files"])

    return deliver


def search(deliver: Deliver, place: SearchedPlace, pattern: str, ask: Ask = lambda _: None) -> list[str] | None:
    """The names that are sent; None where the delivery fails."""
    try:
        with place.watched(ask):
            return deliver(f"{place.root}/{pattern}")
    except Exception:
        return None


def faults_of(deliver: Deliver, place: SearchedPlace) -> Iterator[ListingFault]:
    """Each error to each question that a search asks."""
    for pattern in PATTERNS:
        plan = Plan()
        search(deliver, place, pattern, plan.ask)
        for question in plan.asked:
            for error in place.errors:
                # To a look at a path, that it is not there is an answer, and what it says is believed.
                if not (error == "ENOENT" and question.what == "look at"):
                    yield ListingFault(pattern, question, error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tree on this machine."""
    return LocalPlace(tmp_path_factory.mktemp("listings") / "tree").root


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, folder: str, tmp_path: Path) -> Iterator[SearchedPlace]:
    """Where the tree is, as a delivery sees it."""
    if request.param == "local":
        yield LocalPlace(tmp_path / "tree")
        return
    made = MemoryPlace()
    with made.attached():
        yield made


def wrong(deliver: Deliver, place: SearchedPlace, folder: str, fault: ListingFault) -> bool:
    plan = Plan(fault.question, place.errors[fault.error])
    found = search(deliver, place, fault.pattern, plan.ask)
    return found not in (None, meant(folder, fault.pattern)) or not plan.is_met


def test_a_search_without_faults_finds_what_glob_finds(deliver: Deliver, place: SearchedPlace, folder: str) -> None:
    for pattern in PATTERNS:
        assert search(deliver, place, pattern) == meant(folder, pattern)


def test_no_fault_of_a_search_leaves_out_a_file(deliver: Deliver, place: SearchedPlace, folder: str) -> None:
    faults = list(faults_of(deliver, place))
    assert len(faults) >= 100
    assert [fault for fault in faults if wrong(deliver, place, folder, fault)] == []


def test_a_file_or_folder_that_vanishes_during_a_search_is_not_half_found(deliver: Deliver, tmp_path: Path) -> None:
    for number, pattern in enumerate(PATTERNS):
        plan = Plan()
        before = search(deliver, LocalPlace(tmp_path / f"{number}"), pattern, plan.ask)
        for position, question in enumerate(plan.asked):
            place = LocalPlace(tmp_path / f"{number}-{position}")

            def remove(asked: Question, *, at: Path = Path(place.root) / question.path, own: Any = question) -> None:
                if asked == own:
                    shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink(missing_ok=True)

            found = search(deliver, place, pattern, remove)
            assert found in (None, before, search(deliver, place, pattern)), (pattern, question)
