"""Reads that hang cost a bounded number of threads, and nobody's time beyond a bounded wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from unittest import mock

import pytest

from outbound_transfer.ui.bounded import Reads
from outbound_transfer.ui.kept import Kept
from support.patience import PATIENCE


def readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "outbound-transfer-page"}


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(PATIENCE * 100):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


async def test_a_read_gives_its_result_or_its_error() -> None:
    reads = Reads(1, PATIENCE)
    assert await reads(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await reads(lambda: 1 // 0)
    assert await reads(threading.current_thread) is not threading.main_thread()


async def test_reads_that_hang_keep_their_places_and_nobody_else_is_held_up() -> None:
    end, reads = threading.Event(), Reads(2, 0.2)
    before, begun = readers(), []

    def hang() -> None:
        begun.append(1)
        end.wait()

    answers = await asyncio.gather(*(reads(hang) for _ in range(10)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.TimeoutError] * 10
    assert (len(begun), len(readers() - before)) == (2, 2)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "outbound-transfer-page")

    end.set()
    reads.seconds = PATIENCE
    await until(lambda: not readers() - before)
    assert await asyncio.gather(*(reads(lambda: 1) for _ in range(10))) == [1] * 10


async def test_a_read_waits_for_a_place() -> None:
    end, reads = threading.Event(), Reads(1, PATIENCE)
    first, second = asyncio.ensure_future(reads(end.wait)), asyncio.ensure_future(reads(lambda: 2))
    await asyncio.sleep(0.05)
    assert not second.done()
    end.set()
    assert (await first, await second) == (True, 2)


async def test_a_read_that_ends_oddly_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(1, PATIENCE)

    def leave() -> None:
        raise SystemExit(1)

    with pytest.raises(RuntimeError, match="SystemExit"):
        await reads(leave)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            await reads(leave)
    assert await reads(lambda: 1) == 1


def test_a_read_may_outlive_its_loop() -> None:
    end, reads = threading.Event(), Reads(1, 0.05)
    before = readers()

    async def read() -> None:
        await reads(end.wait)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(read())
    (thread,) = readers() - before
    end.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_counts_are_kept_for_their_time_and_no_longer() -> None:
    now, made = [0.0], []
    kept = Kept(20, most=2, clock=lambda: now[0])

    def make() -> int:
        made.append(now[0])
        return len(made)

    assert [kept("a", make), kept("a", make), kept("b", make)] == [1, 1, 2]
    now[0] = 19.9
    assert kept("a", make) == 1
    now[0] = 20.0
    assert kept("a", make) == 3
    kept("c", make)  # "b" was the oldest
    assert (kept("a", make), kept("b", make)) == (3, 5)


def test_an_error_is_not_kept() -> None:
    kept = Kept(20)
    with pytest.raises(ZeroDivisionError):
        kept("a", lambda: 1 // 0)
    assert kept("a", lambda: 1) == 1
