"""Deliveries by glob of which some question to the file system gets no answer: on this machine, in a store in memory,
and in a real S3 server.

Which questions there are is not guessed: a search without faults is watched, and each listing of a folder, each of its
entries and each look at a path is a place for every kind of fault, for one try of the task or for all of them.

The judge knows what :mod:`glob` finds where nothing fails: just these files are sent, or nothing is and the task fails.

``with Listings(folder) as listings: outcomes = map(listings.run, listings.schedules())``
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol
from unittest import mock

from aiobotocore.client import AioBaseClient
from airflow.sdk.io import store
from botocore.exceptions import ClientError, ConnectionClosedError
from botocore.parsers import ResponseParserError
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from s3fs import S3FileSystem

from outbound_transfer.files.sources import resolve_files
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer_sandbox.testing import Sandbox
from resilience.fault_matrix.matrix import DELIVERY, NOT_MET, RETRIES, FaultedRun, FaultKind, Harness, Outcome
from support.object_storage import Bucket, connection_json, running_s3
from support.tasks import FakeTaskInstance

FILES = (
    "in/top.csv",
    "in/last.csv",
    "in/a/a1.csv",
    "in/a/a2.csv",
    "in/b/b1.csv",
    "in/b/deep/b2.csv",
    "in/b/deep/b3.txt",
    "in/c/deep/c1.csv",
    "in/linked/l1.csv",
)
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
    """A question that is answered with an error, in the first try only or, ``lasting``, in every one."""

    place: str
    pattern: str
    question: Question
    error: str
    lasting: bool

    @property
    def kind(self) -> FaultKind:
        """For a table of what was run. That a folder is not there is an answer: no retry is owed for it."""
        return FaultKind(f"{self.place} {self.error}", {}, passes=not self.lasting and self.error != "ENOENT")

    def __str__(self) -> str:
        return f"{self.kind.name} of {self.question} for {self.pattern}{' in every try' if self.lasting else ''}"


Ask = Callable[[Question], None]


class WarehouseTarget(Protocol):
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


def _client_error(status: int, code: str) -> Callable[[], Exception]:
    answer: Any = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return lambda: ClientError(answer, "ListObjectsV2")


class S3Place:
    """A real server, asked for pages of two."""

    errors: ClassVar = {
        "503 SlowDown": _client_error(503, "SlowDown"),
        "403 AccessDenied": _client_error(403, "AccessDenied"),
        "500 InternalError": _client_error(500, "InternalError"),
        "connection closed": lambda: ConnectionClosedError(endpoint_url="http://s3"),
        "truncated page": lambda: ResponseParserError("invalid XML"),
    }

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._stores: dict[str, Any] = {}
        bucket = Bucket(endpoint, "bucket")
        for name in FILES:
            bucket.put(name, name.encode())
        bucket.close()
        self.root = bucket.uri

    @contextmanager
    def attached(self) -> Iterator[None]:
        """The server, as Airflow sees it. s3fs repeats nothing: the task does."""
        connection = connection_json(self._endpoint, config_kwargs={"retries": {"max_attempts": 0}})
        with (
            mock.patch.object(store, "_STORE_CACHE", self._stores),
            mock.patch.dict(os.environ, AIRFLOW_CONN_AWS_DEFAULT=connection),
            mock.patch.object(S3FileSystem, "retries", 1),
        ):
            yield

    @contextmanager
    def watched(self, ask: Ask) -> Iterator[None]:
        call = AioBaseClient._make_api_call

        async def asking(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
            if operation == "ListObjectsV2":
                # A page is told by where it begins: a token of moto's is another one in each listing.
                page = pages.get(arguments.get("ContinuationToken", ""), 0)
                ask(Question("list", arguments["Prefix"], page))
                answer = await call(client, operation, {**arguments, "MaxKeys": 2})
                pages[answer.get("NextContinuationToken")] = page + 1
                return answer
            return await call(client, operation, arguments)

        pages: dict[str | None, int] = {}
        with mock.patch.object(AioBaseClient, "_make_api_call", asking):
            yield


@dataclass
class _Plan:
    """What is asked, and what is answered: ``error`` to ``question``, ``times`` times."""

    question: Question | None = None
    error: Callable[[], Exception] = Exception
    times: float = 0
    met: int = 0
    asked: dict[Question, None] = field(default_factory=dict)

    def ask(self, question: Question) -> None:
        self.asked[question] = None
        if question == self.question and self.met < self.times:
            self.met += 1
            raise self.error()


class Listings:
    """Runs schedules of one fault each, in a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self._harness_folder = folder / "harness"
        self._harness_folder.mkdir()
        self.local = LocalPlace(folder / "tree")
        self._places: dict[str, WarehouseTarget] = {"local": self.local}
        self._open = ExitStack()

    def __enter__(self) -> Listings:
        self.harness = self._open.enter_context(Harness(self._harness_folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def place(self, name: str) -> WarehouseTarget:
        """``local``, ``memory`` or ``s3``; made when it is first asked for."""
        if name not in self._places:
            s3 = name == "s3"
            self._places[name] = S3Place(self._open.enter_context(running_s3())) if s3 else MemoryPlace()
        return self._places[name]

    @contextmanager
    def at(self, name: str) -> Iterator[WarehouseTarget]:
        """The place, where a delivery looks for it."""
        place = self.place(name)
        with place.attached() if isinstance(place, MemoryPlace | S3Place) else ExitStack():
            yield place

    def schedules(self, *places: str) -> Iterator[ListingFault]:
        """Each error to each question that a search asks, in one try and in all of them; ``places``: all."""
        for name in places or ("local", "memory", "s3"):
            for pattern in PATTERNS:
                with self.at(name) as place:
                    plan = _Plan()
                    with place.watched(plan.ask):
                        resolve_files(f"{place.root}/{pattern}")
                for question in plan.asked:
                    for error in _errors_to(place, question):
                        yield from (ListingFault(name, pattern, question, error, lasting) for lasting in (False, True))

    def meant(self, pattern: str) -> list[Path]:
        """What :mod:`glob` finds where nothing fails."""
        matches = glob.glob(f"{self.local.root}/{pattern}", recursive=True)
        return sorted(Path(match) for match in matches if os.path.isfile(match))

    def run(self, fault: ListingFault) -> Outcome:
        """A whole delivery, judged by what the service has sent; one that failed is cleared and must deliver then."""
        with self.at(fault.place) as place:
            run = _Run(self.harness.sandbox(), self.meant(fault.pattern), f"{place.root}/{fault.pattern}")
            plan = _Plan(fault.question, place.errors[fault.error], RETRIES + 1 if fault.lasting else 1)
            with place.watched(plan.ask):
                run.deliver()
            outcome = run.judged((fault,), must_succeed=fault.kind.passes)  # type: ignore[arg-type]
        unmet = () if plan.met else (f"{NOT_MET}: {fault}",)
        return replace(outcome, violations=(*outcome.violations, *unmet))

    def search(self, fault: ListingFault) -> list[str]:
        """Only the search of one try: what is wrong with what it gives."""
        with self.at(fault.place) as place:
            plan = _Plan(fault.question, place.errors[fault.error], 1)
            found = _search(place, fault.pattern, plan.ask)
        meant = [path.name for path in self.meant(fault.pattern)]
        violations = [] if plan.met else [f"{NOT_MET}: {fault}"]
        return (
            violations if found in (None, sorted(meant)) else [*violations, f"found {found} and not {meant}: {fault}"]
        )


def vanishing(folder: Path) -> Iterator[str]:
    """Searches in whose midst what is asked about is removed: what is wrong with what they give.

    :param folder: for a tree of each search.
    """
    for pattern in PATTERNS:
        plan = _Plan()
        before = _search(LocalPlace(folder / pattern.replace("/", "-")), pattern, plan.ask)
        for number, question in enumerate(plan.asked):
            place = LocalPlace(folder / f"{pattern.replace('/', '-')}-{number}")
            found = _search(place, pattern, _Removing(Path(place.root), question).ask)
            after = _search(place, pattern, lambda _: None)
            if found is not None and found not in (before, after):
                yield f"found {found}, neither {before} nor {after}: {pattern}, {question}"


def _search(place: WarehouseTarget, pattern: str, ask: Ask) -> list[str] | None:
    """The names that are found; None where the search says that it failed."""
    try:
        with place.watched(ask):
            return sorted(source.name for source in resolve_files(f"{place.root}/{pattern}"))
    except OutboundTransferError:
        return None


@dataclass
class _Removing:
    root: Path
    question: Question
    done: bool = False

    def ask(self, question: Question) -> None:
        if question == self.question and not self.done:
            self.done = True
            path = self.root / question.path
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _errors_to(place: WarehouseTarget, question: Question) -> Iterator[str]:
    for error in place.errors:
        # To a look at a path, that it is not there is an answer, and what it says is believed.
        if not (error == "ENOENT" and question.what == "look at"):
            yield error


class _Run(FaultedRun):
    """A delivery by glob."""

    def __init__(self, sandbox: Sandbox, files: list[Path], pattern: str) -> None:
        super().__init__(sandbox, files, late=False)
        self.pattern = pattern

    def task(self, *, deferrable: bool = False) -> FakeTaskInstance:
        """As :meth:`.Run.task`, with a glob."""

        def make() -> DeliverFilesOperator:
            return DeliverFilesOperator(task_id="deliver", files=self.pattern, deferrable=deferrable, **DELIVERY)

        return FakeTaskInstance(make, self.time, RETRIES)
