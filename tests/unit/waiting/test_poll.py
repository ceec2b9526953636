"""One poll for all waits of a connection: nothing that goes wrong in it ends it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from outbound_transfer.client.models import Transfer, TransferPage
from outbound_transfer.client.settings import Settings
from outbound_transfer.waiting import poll, wait
from outbound_transfer.waiting.poll import join_poll
from outbound_transfer.waiting.wait import Rules, Wait, WaitEnd

SETTINGS = Settings("https://account.example.com", "key")

#: Parts of the poll that run before it, after it, or when something has failed already.
NOT_BROKEN = {"__init__", "join_poll", "stop", "start_thread", "run", "_run", "_fail", "account", "emit_count", "watch"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "MIN_INTERVAL", 0.01)
    monkeypatch.setattr(poll, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(poll, "TICK", 0.01)
    monkeypatch.setattr(poll, "PACE", 0.0)
    monkeypatch.setattr(poll, "find_rows", lambda: None)


class Service:
    """A client of transfers that are complete, but for those that are pending."""

    clock_difference = 0.0

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.settings, self.pending = settings, set[str]()

    def list_transfers(self, *, status: str, cursor: str | None) -> TransferPage:
        shown = sorted(self.pending) if status == "pending" else []
        return TransferPage(tuple(map(self.transfer, shown)))

    def get_transfer(self, transfer_id: str) -> Transfer:
        return self.transfer(transfer_id)

    def transfer(self, transfer_id: str) -> Transfer:
        status = "pending" if transfer_id in self.pending else "complete"
        return Transfer(transfer_id, status, "", "2100-01-01T00:00:00Z", sent_at="2024-01-01T00:00:00Z")

    def stop(self) -> None: ...

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None: ...


def new_wait(transfer_id: str) -> Wait:
    return Wait(transfer_id, 0.02, time.time() + 600, Rules())


async def ends(*waits: Wait, service: Any) -> list[Any]:
    with ExitStack() as stack:
        for each in waits:
            stack.enter_context(join_poll("one", each, lambda: service))
        return [(await end_of(each)).status for each in waits]


async def end_of(wait: Wait) -> WaitEnd:
    while isinstance(news := await asyncio.wait_for(wait.news.get(), 10), str):
        pass
    return news


FILES = {str(Path(module.__file__ or "")) for module in (poll, wait, sys.modules["outbound_transfer.waiting.reader"])}


class Breaking:
    """Raises an exception the first time that a function is called or a line is run; collects what is run."""

    def __init__(self, event: str, place: tuple[str, str, int] | None = None) -> None:
        self.event, self.place = event, place
        self.places, self.is_broken = dict[tuple[str, str, int], None](), False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in FILES or code.co_name in NOT_BROKEN:
            return None
        if event == self.event:
            place = (code.co_filename, code.co_qualname, frame.f_lineno if event == "line" else 0)
            self.places[place] = None
            if place == self.place and not self.is_broken:
                self.is_broken = True
                raise ZeroDivisionError(str(place))
        return self

    async def run(self) -> list[str]:
        service, waits = Service(), [new_wait(one) for one in "abcde"]
        service.pending = {"a"}
        threading.Timer(0.05, service.pending.clear).start()
        self.traces = sys.gettrace(), threading.gettrace()  # a measurement of coverage
        threading.settrace(self)
        sys.settrace(self)
        try:
            return await ends(*waits, service=service)
        finally:
            sys.settrace(self.traces[0])
            threading.settrace(self.traces[1])  # type: ignore[arg-type]


def test_a_loop_that_ends_with_the_first_news_ends_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``dag.test()``; the loop sees the end of the poll's thread only while it cancels the poll."""
    has_ended = threading.Event()
    monkeypatch.setattr(Service, "__exit__", lambda *_: has_ended.wait(10))

    async def first_end() -> None:
        stack.enter_context(join_poll("one", wait := new_wait("t"), Service))
        await end_of(wait)
        has_ended.set()
        [each.join() for each in threading.enumerate() if each.name == "outbound-transfer-poll"]

    with ExitStack() as stack:
        asyncio.run(first_end())


@pytest.mark.parametrize("event", ["call", pytest.param("line", marks=pytest.mark.slow)])
def test_an_exception_anywhere_ends_no_wait(event: str) -> None:
    seen = Breaking(event)
    assert asyncio.run(seen.run()) == ["finished"] * 5
    places = list(seen.places)
    assert len(places) > (15 if event == "call" else 60)
    broken = 0
    for place in places:
        breaking = Breaking(event, place)
        assert asyncio.run(breaking.run()) == ["finished"] * 5, place
        broken += breaking.is_broken
    assert broken > 0.9 * len(places)
