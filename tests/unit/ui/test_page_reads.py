"""Reads that hang cost a bounded number of threads, and nobody's time beyond a bounded wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from unittest import mock

import pytest

from outbound_transfer.ui.threads import BoundedThreadRunner
from support.timeouts import TEST_TIMEOUT


def readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "outbound-transfer-page"}


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(TEST_TIMEOUT * 100):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


async def test_read_returns_its_result_or_raises_its_error() -> None:
    runner = BoundedThreadRunner(1, TEST_TIMEOUT)
    assert await runner(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await runner(lambda: 1 // 0)
    assert await runner(threading.current_thread) is not threading.main_thread()


async def test_hanging_reads_occupy_their_threads_and_block_nobody_else() -> None:
    end, runner = threading.Event(), BoundedThreadRunner(2, 0.2)
    before, started = readers(), []

    def hang() -> None:
        started.append(1)
        end.wait()

    answers = await asyncio.gather(*(runner(hang) for _ in range(10)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.TimeoutError] * 10
    assert (len(started), len(readers() - before)) == (2, 2)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "outbound-transfer-page")

    end.set()
    runner.timeout = TEST_TIMEOUT
    await until(lambda: not readers() - before)
    assert await asyncio.gather(*(runner(lambda: 1) for _ in range(10))) == [1] * 10


async def test_read_waits_for_a_free_thread() -> None:
    end, runner = threading.Event(), BoundedThreadRunner(1, TEST_TIMEOUT)
    first, second = asyncio.ensure_future(runner(end.wait)), asyncio.ensure_future(runner(lambda: 2))
    await asyncio.sleep(0.05)
    assert not second.done()
    end.set()
    assert (await first, await second) == (True, 2)


async def test_read_that_exits_releases_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = BoundedThreadRunner(1, TEST_TIMEOUT)

    def leave() -> None:
        raise SystemExit(1)

    with pytest.raises(RuntimeError, match="SystemExit"):
        await runner(leave)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            await runner(leave)
    assert await runner(lambda: 1) == 1


def test_a_read_may_outlive_its_loop() -> None:
    end, runner = threading.Event(), BoundedThreadRunner(1, 0.05)
    before = readers()

    async def read() -> None:
        await runner(end.wait)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(read())
    (thread,) = readers() - before
    end.set()
    thread.join(TEST_TIMEOUT)
    assert not thread.is_alive()
