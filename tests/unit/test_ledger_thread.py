"""What carries notes and counts to the ledger: nobody waits for it, and nobody fails with it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.client import Asked, AsyncClient, Client, Observer, RetryPolicy, Settings
from outbound_transfer.digests import Digest
from outbound_transfer.ledger.counts import CALLS, MOST, CallCounts
from outbound_transfer.ledger.journal import Journal
from outbound_transfer.ledger.triggerer import INTERVAL, Desk
from outbound_transfer.ledger.writer import Writer
from outbound_transfer.protocol import calls
from outbound_transfer.protocol.errors import CallError, RateLimited
from outbound_transfer.protocol.exchange import Operation, Upload
from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.deliveries import DeliveryTables, Task
from outbound_transfer.warehouse.rows import instant
from support.warehouses import sqlite_hook

SENT = Transfer("t1", "pending", "S", recipients=(Recipient("ann@example.com"),))


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, /, *args: Any) -> None:
        self.warning(message, *args)

    def warning(self, message: str, /, *args: Any) -> None:
        self.lines.append(message % args)


def test_of_one_key_only_the_latest_is_written_and_what_hangs_is_left_behind() -> None:
    log, done, go_on, begun = Log(), [], threading.Event(), threading.Event()

    def hang(tables: list[Any]) -> None:
        begun.set()
        go_on.wait(60)

    writer = Writer(lambda: done, log)
    writer.put("a", hang)
    begun.wait(60)
    for number in range(100):
        writer.put("a", lambda tables, number=number: tables.append(number))
    writer.put("b", lambda tables: tables.append("b"))
    assert writer.backlog == 2
    assert writer.close(0.01) is False
    assert done == []
    go_on.set()
    assert writer.close(60) is True
    assert (done, log.lines, writer.has_failed) == ([99, "b"], [], False)


def test_failures_are_told_once_and_the_next_note_is_tried_again() -> None:
    log, done, failing = Log(), [], [OSError("first\nline"), OSError("again")]

    def begin() -> list[Any]:
        if failing:
            raise failing.pop(0)
        return done

    writer = Writer(begin, log)
    for each in "abc":
        writer.put(each, lambda tables, each=each: tables.append(each))
    assert writer.close(60) is True
    assert (done, writer.has_failed) == (["c"], True)
    assert log.lines == ["The delivery ledger cannot be written: OSError: first line"]


def test_a_writer_that_was_given_nothing_has_no_thread() -> None:
    before = threading.active_count()
    writer = Writer(list, Log())
    assert threading.active_count() == before
    assert writer.close(0) is True


def test_a_machine_without_a_thread_left_breaks_nothing(monkeypatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    log = Log()
    writer = Writer(list, log)
    writer.put("a", print)
    writer.put("b", print)
    assert writer.close(0) is True
    assert len(log.lines) == 1


def test_calls_are_counted_by_minute_and_taken_once() -> None:
    now = [datetime(2026, 1, 31, 12, 0, 59, tzinfo=timezone.utc).timestamp()]
    counts = CallCounts(clock=lambda: now[0])
    counts.add("acme", "conn", Operation.LIST_FILES, 200)
    counts.add("acme", "conn", Operation.LIST_FILES, 200)
    counts.add("acme", "conn", Operation.SEND, None)
    now[0] += 1
    counts.add("acme", "conn", Operation.LIST_FILES, 200)
    first = instant(datetime(2026, 1, 31, 12, 0, tzinfo=timezone.utc))
    second = instant(datetime(2026, 1, 31, 12, 1, tzinfo=timezone.utc))
    rows = counts.take()
    assert [row[1:] for row in rows] == [
        (first, "acme", "conn", "list files", 200, 2),
        (first, "acme", "conn", "send", 0, 1),
        (second, "acme", "conn", "list files", 200, 1),
    ]
    assert len({row[0] for row in rows}) == 3
    assert counts.take() == []


def test_counts_that_nobody_takes_do_not_grow_for_ever() -> None:
    counts = CallCounts()
    for number in range(MOST + 10):
        counts.add("acme", str(number), Operation.SEND, 200)
    counts.add("acme", "0", Operation.SEND, 200)
    rows = counts.take()
    assert (len(rows), sum(row[-1] for row in rows)) == (MOST, MOST + 1)


def test_a_digest_is_of_the_last_whole_reading() -> None:
    readings = iter([[b"ab"], [b"ab", b"cd"], [b"a"]])
    digest = Digest(Upload("a", 4, lambda: iter(next(readings))))
    cut_off = digest.upload.chunks()
    next(cut_off)
    cut_off.close()
    assert digest.sha256 == ""
    assert b"".join(digest.upload.body()) == b"abcd"
    assert digest.sha256 == hashlib.sha256(b"abcd").hexdigest()
    next(digest.upload.chunks())
    assert digest.sha256 == hashlib.sha256(b"abcd").hexdigest()


class Ear(Observer):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int | None]] = []
        self.waited: list[type[BaseException]] = []

    def asked(self, asked: Asked) -> None:
        assert asked.seconds > 0
        self.heard.append((asked.call.operation.value, asked.status))

    def waits(self, wait: Any) -> None:
        self.waited.append(type(wait.error))


class Broken(Observer):
    def asked(self, asked: Asked) -> None:
        raise OSError

    waits = asked  # type: ignore[assignment]


FAULTS = [{"kind": "error", "status": 429, "retry_after": "1"}, {"kind": "reset"}]
HEARD = [("list", 429), ("list", None), ("list", 200)]


def test_an_observer_is_told_of_every_try_and_wait(sandbox) -> None:
    ear = Ear()
    sandbox.plan_faults(*FAULTS)
    with Client(_settings(sandbox), observer=ear, sleep=lambda _: None, on_wait=lambda _: None) as client:
        client.perform(calls.list_transfers(limit=1))
    assert ear.heard == HEARD
    assert ear.waited[0] is RateLimited
    assert len(ear.waited) == 2


async def test_the_async_client_tells_the_same(sandbox) -> None:
    ear = Ear()
    sandbox.plan_faults(*FAULTS)

    async def sleep(_: float) -> None: ...

    async with AsyncClient(_settings(sandbox), observer=ear, sleep=sleep, on_wait=lambda _: None) as client:
        await client.perform(calls.list_transfers(limit=1))
    assert ear.heard == HEARD


def test_an_observer_that_fails_breaks_no_call(sandbox) -> None:
    sandbox.plan_faults(*FAULTS)
    with Client(_settings(sandbox), observer=Broken(), sleep=lambda _: None, on_wait=lambda _: None) as client:
        assert client.perform(calls.list_transfers(limit=1)).data == ()


def test_a_wait_is_told_even_where_it_is_spent_elsewhere(sandbox) -> None:
    """A deferral raises out of ``on_wait``."""

    class Elsewhere(Exception):
        pass

    def elsewhere(_: Any) -> None:
        raise Elsewhere

    ear = Ear()
    sandbox.plan_faults(FAULTS[0])
    with (
        Client(_settings(sandbox), observer=ear, on_wait=elsewhere, policy=RetryPolicy()) as client,
        pytest.raises(Elsewhere),
    ):
        client.perform(calls.list_transfers(limit=1))
    assert ear.waited == [RateLimited]


def test_an_observer_hears_of_a_service_that_is_not_there() -> None:
    ear = Ear()
    policy = RetryPolicy(attempts=1)
    with Client(Settings("http://127.0.0.1:1/", "k"), observer=ear, policy=policy) as client, pytest.raises(CallError):
        client.perform(calls.list_transfers(limit=1))
    assert ear.heard == [("list", None)]


def _settings(sandbox: Any) -> Settings:
    return Settings(f"{sandbox.base_url}/", sandbox.transfer_api_key)


@pytest.fixture
def fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    CALLS.take()
    file = tmp_path / "ledger.db"
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(file)}))
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "ledger")
    yield sqlite_hook(file).fetch
    CALLS.take()


def begin_row(tmp_path: Path, account: str) -> None:
    tables = DeliveryTables(Warehouse(sqlite_hook(tmp_path / "ledger.db")))
    Journal(account, Task("conn", "dag", "deliver", "run", -1, 1), tables.save).saw(SENT)


async def settled(desk: Desk) -> None:
    """All that was begun is done, and the thread has written it."""
    await asyncio.gather(*desk._tasks, return_exceptions=True)
    if desk._writer is not None:
        assert await asyncio.to_thread(desk._writer.close, 60)


async def test_an_end_that_no_worker_tells_is_written_by_the_triggerer(fetch, tmp_path, sandbox, connection) -> None:
    begin_row(tmp_path, sandbox.base_url.removeprefix("http://"))
    desk = Desk()
    desk.ended(Transfer("t1", "complete", "S", recipients=SENT.recipients), connection)
    await settled(desk)
    assert fetch("SELECT status, task_id FROM outbound_transfer_deliveries") == [("complete", "deliver")]


async def test_a_triggerer_counts_its_calls_now_and_then(fetch) -> None:
    desk = Desk()
    CALLS.add("acme", "conn", Operation.LIST, 200)
    desk.count()
    assert desk._tasks == set(), "not yet"
    desk._counted -= INTERVAL
    desk.count()
    await settled(desk)
    assert fetch("SELECT operation, calls FROM outbound_transfer_calls") == [("list", 1)]


async def test_a_ledger_that_is_not_there_ends_no_wait(monkeypatch, sandbox, connection, caplog) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "nobody")
    desk = Desk()
    desk.ended(SENT, connection)
    await settled(desk)
    assert "ledger is not told" in caplog.text


async def test_a_ledger_that_hangs_takes_no_more_than_so_many_notes(fetch, monkeypatch, sandbox, connection) -> None:
    from outbound_transfer.ledger import triggerer

    go_on, begun = threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        begun.set()
        go_on.wait(60)
        raise OSError

    monkeypatch.setattr(triggerer, "tables_of", hang)
    monkeypatch.setattr(triggerer, "MOST", 3)
    desk = Desk()
    try:
        for number in range(10):
            desk.ended(Transfer(f"t{number}", "complete", "S"), connection)
        await asyncio.gather(*desk._tasks)
        await asyncio.to_thread(begun.wait, 60)
        assert desk._writer is not None
        assert desk._writer.backlog <= 3
    finally:
        go_on.set()
        await settled(desk)
