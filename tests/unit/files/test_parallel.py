"""Several uploads at once: their order, what a failure, a deferral or an interrupt stops, and what the state says."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from outbound_transfer.client import Client, Settings, client
from outbound_transfer.client.retry import RetryDetails
from outbound_transfer.files import uploads
from outbound_transfer.files.sources import CHUNK_BYTES, resolve_files
from outbound_transfer.files.uploads import FinishedUpload, attach_sources
from outbound_transfer.protocol.deferral import DeferRequested
from outbound_transfer.protocol.errors import FileTooLarge, Forbidden
from outbound_transfer.protocol.messages import Call, Response
from outbound_transfer.protocol.models import File
from support.timeouts import TEST_TIMEOUT, eventually

SETTINGS = Settings("http://127.0.0.1:9/", "key")


def error(status: int, code: str, retry_after: str | None = None) -> Response:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Response(status, headers, json.dumps({"error": code, "message": "m"}).encode())


FORBIDDEN, LIMITED = error(403, "sending_not_permitted"), error(429, "rate_limited", "30")


class Service:
    """Attaches files in the place of the HTTP library.

    :ivar scripts: by file, what becomes of its upload: called first, may block, and may return an error response.
    :ivar events: ``start``, ``finish``, ``fail`` and the file's name, in order.
    """

    def __init__(self) -> None:
        self.scripts: dict[str, Callable[[], Response | None]] = {}
        self.chunks_before_script: dict[str, int] = {}
        self.events: list[tuple[str, str]] = []
        self.stored: dict[str, bytes] = {}
        self.threads: set[int] = set()

    def send(self, _http: Any, _settings: Settings, call: Call[Any], _secrets: Any) -> Response:
        assert call.upload
        name = call.upload.name
        self.events.append(("start", name))
        self.threads.add(threading.get_ident())
        try:
            chunks = call.upload.body()
            first = b"".join(islice(chunks, self.chunks_before_script.get(name, 1)))
            if refusal := self.scripts.get(name, lambda: None)():
                self.events.append(("refuse", name))
                return refusal
            self.stored[name] = first + b"".join(chunks)
        except BaseException:
            self.events.append(("fail", name))
            raise
        self.events.append(("finish", name))
        record = {"id": f"id of {name}", "name": name, "size": call.upload.size}
        return Response(201, {}, json.dumps(record).encode())

    def started(self) -> list[str]:
        return [name for what, name in self.events if what == "start"]

    def running(self) -> int:
        return sum({"start": 1}.get(what, -1) for what, _ in list(self.events))


class Bench:
    """A draft, and files to attach to it, of which the one called "largest" is it."""

    def __init__(self, folder: Path, names: str) -> None:
        self.service, self.client = Service(), Client(SETTINGS, on_retry=defer)
        self.notified: list[tuple[str, str]] = []
        self.threads: set[int] = set()
        self.finished: dict[str, str] = {}
        for name in names:
            (folder / name).write_bytes(name.encode() * (CHUNK_BYTES + 10))
        (folder / "largest").write_bytes(b"l" * (2 * CHUNK_BYTES))
        self.sources = resolve_files([str(folder / name) for name in [*names, "largest"]])

    def attach(self, max_parallel: int = 4) -> list[File]:
        attached: dict[str, File] = {}

        def on_attached(upload: FinishedUpload) -> None:
            self.threads.add(threading.get_ident())
            self.notified.append((upload.source.name, upload.sha256))
            self.finished[upload.source.name] = upload.file.id
            attached[upload.source.name] = upload.file

        with mock.patch.object(client, "send", self.service.send):
            attach_sources(
                self.client,
                "t",
                self.sources,
                max_parallel=max_parallel,
                on_attached=on_attached,
                log=logging.getLogger("test"),
            )
        return [attached[source.name] for source in self.sources]

    def saved(self) -> dict[str, str]:
        """The ids of the files that are known to be attached."""
        return self.finished

    def held(self, *names: str) -> tuple[threading.Event, threading.Event]:
        """Hold these uploads at their first chunk: two events, all are there, and they may go on."""
        arrived, go = threading.Event(), threading.Event()
        count = iter(range(len(names) - 1, -1, -1))

        def hold() -> None:
            if not next(count):
                arrived.set()
            assert go.wait(TEST_TIMEOUT)

        self.service.scripts.update(dict.fromkeys(names, hold))
        return arrived, go

    def refuse(self, name: str, arrived: threading.Event, go: threading.Event) -> None:
        """Refuse an upload once others have arrived; these go on when they are stopped."""

        def refused() -> Response:
            assert arrived.wait(TEST_TIMEOUT)
            return FORBIDDEN

        self.service.scripts[name] = refused
        stop = self.client.stop
        self.client.stop = lambda: (stop(), go.set())


def defer(retry: RetryDetails) -> None:
    """The retry hook of a deferrable task."""
    raise DeferRequested(retry.wait_for)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    benches: list[Bench] = []

    def make(names: str) -> Bench:
        benches.append(Bench(tmp_path, names))
        return benches[-1]

    yield make
    for each in benches:
        each.client.close()


@pytest.mark.parametrize("max_parallel", [1, 2, 4])
def test_the_largest_is_uploaded_first_and_alone(bench, max_parallel) -> None:
    run, others = bench("abcde"), threading.Event()
    run.service.chunks_before_script = {"largest": 2}
    run.service.scripts = {**dict.fromkeys("abcde", others.set), "largest": lambda: others.wait(0.2) and FORBIDDEN}

    run.attach(max_parallel)

    assert run.service.events[:2] == [("start", "largest"), ("finish", "largest")]


def test_a_largest_file_over_the_limit_is_the_only_one_that_is_sent(bench) -> None:
    run = bench("abc")
    run.service.scripts["largest"] = lambda: error(413, "file_too_large")

    with pytest.raises(FileTooLarge):
        run.attach()

    assert run.service.started() == ["largest"]
    assert run.service.stored == {}


def test_the_others_start_as_soon_as_the_service_reads_the_largest(bench, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "ACCEPTED_BYTES", CHUNK_BYTES)
    run = bench("abc")
    run.service.chunks_before_script = {"largest": 2}
    together = threading.Barrier(4)
    run.service.scripts = dict.fromkeys(["largest", *"abc"], lambda: together.wait(TEST_TIMEOUT) and None)

    run.attach()

    assert run.service.started()[0] == "largest"
    assert len(run.service.stored) == 4


def test_a_failure_of_the_largest_stops_the_others_that_have_started(bench, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "ACCEPTED_BYTES", CHUNK_BYTES)
    run = bench("ab")
    run.service.chunks_before_script = {"largest": 2}
    arrived, go = run.held("a", "b")
    run.refuse("largest", arrived, go)

    with pytest.raises(Forbidden):
        run.attach()

    assert run.service.stored == {}
    assert run.saved() == {}


def test_no_more_run_at_once_than_they_may(bench) -> None:
    run = bench("abcdefgh")
    together, counts = threading.Barrier(3), list[int]()

    def meet() -> None:
        counts.append(run.service.running())
        if len(counts) <= 3:
            together.wait(TEST_TIMEOUT)

    run.service.scripts = dict.fromkeys("abcdefgh", meet)

    run.attach(3)

    assert max(counts) == 3
    assert len(run.service.stored) == 9


def test_only_this_thread_stores_and_notifies(bench) -> None:
    run = bench("abc")

    run.attach()

    assert run.threads == {threading.get_ident()}
    assert threading.get_ident() not in run.service.threads


def test_a_failure_stops_the_others(bench) -> None:
    run = bench("abcd")
    arrived, go = run.held("a", "b")
    run.refuse("c", arrived, go)

    with pytest.raises(Forbidden):
        run.attach(3)

    assert run.service.started().count("d") == 0, "no further upload starts"
    assert sorted(run.service.events[-2:]) == [("fail", "a"), ("fail", "b")], "those that run break off"
    assert run.saved() == {"largest": "id of largest"}


def test_an_upload_that_is_finished_after_a_failure_is_stored(bench) -> None:
    run = bench("ab")
    (run.sources[0]._backend.path).write_bytes(b"a")  # one chunk: nothing is left to break off
    run.sources = resolve_files([source.location for source in run.sources])
    arrived, go = run.held("a")
    run.refuse("b", arrived, go)

    with pytest.raises(Forbidden):
        run.attach()

    assert run.saved() == {"largest": "id of largest", "a": "id of a"}


def test_a_deferral_lets_the_others_finish(bench) -> None:
    run = bench("abcd")
    arrived, go = run.held("a", "b")

    def refuse() -> Response:
        assert arrived.wait(TEST_TIMEOUT)
        threading.Timer(0.1, go.set).start()
        return LIMITED

    run.service.scripts["c"] = refuse

    with pytest.raises(DeferRequested) as deferral:
        run.attach(3)

    assert deferral.value.seconds >= 30
    assert deferral.value.waited["attach"] >= deferral.value.seconds
    assert sorted(run.service.stored) == ["a", "b", "largest"]
    assert sorted(run.saved()) == ["a", "b", "largest"]


def test_several_deferrals_are_one_for_the_longest(bench) -> None:
    run = bench("ab")
    both = threading.Barrier(2)

    def refuse(seconds: str) -> Callable[[], Response]:
        def refused() -> Response:
            both.wait(TEST_TIMEOUT)
            return error(429, "rate_limited", seconds)

        return refused

    run.service.scripts = {"a": refuse("20"), "b": refuse("50")}

    with pytest.raises(DeferRequested) as deferral:
        run.attach()

    assert deferral.value.seconds >= 50


@pytest.mark.parametrize("first", ["a", "b"])
def test_an_error_counts_more_than_a_deferral(bench, first) -> None:
    run = bench("ab")
    go, both = threading.Event(), threading.Barrier(2)

    def respond(name: str, response: Response) -> Callable[[], Response]:
        def responded() -> Response:
            both.wait(TEST_TIMEOUT)
            if name == first:
                threading.Timer(0.1, go.set).start()
            else:
                assert go.wait(TEST_TIMEOUT)
            return response

        return responded

    run.service.scripts = {"a": respond("a", LIMITED), "b": respond("b", FORBIDDEN)}

    with pytest.raises(Forbidden):
        run.attach()


@contextmanager
def raising_on_sigint(exception: type[BaseException]) -> Iterator[None]:
    def raise_it(*_: object) -> None:
        raise exception

    before = signal.signal(signal.SIGINT, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class TaskTimedOut(BaseException):
    """As Airflow's timeout is raised: by a signal, in the main thread."""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TaskTimedOut])
def test_an_interrupt_of_the_task_stops_its_uploads(bench, interrupt) -> None:
    run = bench("abcd")
    arrived, go = run.held("a", "b")

    def interrupt_task() -> None:
        assert arrived.wait(TEST_TIMEOUT)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert run.client._stopped.wait(TEST_TIMEOUT)
        go.set()

    run.service.scripts["c"] = interrupt_task

    with raising_on_sigint(interrupt), pytest.raises(interrupt):
        run.attach(3)

    eventually(lambda: run.service.running() == 0)
    assert sorted(run.service.events[-3:]) == [("fail", "a"), ("fail", "b"), ("fail", "c")]
    assert run.service.started().count("d") == 0
    assert run.saved() == {"largest": "id of largest"}


FIELD: ContextVar[str] = ContextVar("a field of log lines", default="")


def test_the_log_of_an_upload_has_the_context_of_the_task(bench) -> None:
    run, seen = bench("ab"), list[str]()
    run.service.scripts = dict.fromkeys("ab", lambda: seen.append(FIELD.get()))
    token = FIELD.set("deliver")
    try:
        run.attach()
    finally:
        FIELD.reset(token)

    assert seen == ["deliver", "deliver"]
