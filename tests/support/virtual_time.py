"""Time that passes as soon as everybody sleeps: hours of waiting in a moment, for the provider and the sandbox alike.

Inside :meth:`VirtualTime.running`, a sleep of this process ends when all of its threads sleep: in an event loop that
:meth:`VirtualTime.run` runs, in ``time.sleep``, and on a condition or an event of ``threading``. The clocks of Python,
Airflow and the sandbox then jump to the first of these ends.
"""

from __future__ import annotations

import asyncio
import gc
import math
import queue
import selectors
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, TypeVar
from unittest import mock

import httpx
import pendulum

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import timezone

T = TypeVar("T")

#: Real seconds for which a sleeper looks away, and how often in a row everybody must be found asleep.
_SLICE, _LOOKS = 0.0005, 2

#: Files and functions in which a thread waits for another one.
_WAITING = {
    *(("threading.py", name) for name in ("wait", "_wait_for_tstate_lock")),
    *(("selectors.py", "select"), ("queue.py", "get"), ("runners.py", "run")),
}

_REAL_TIME, _REAL_MONOTONIC, _REAL_SLEEP = time.time, time.monotonic, time.sleep
_REAL_WAIT = threading.Condition.wait
_LOOKING = threading.Lock()


@dataclass(eq=False)
class VirtualTime:
    """The clock of this process and of the sandbox.

    :ivar offset: seconds by which the clock is ahead of the machine's.
    :ivar off: seconds by which the provider's calendar is off, which the sandbox's and the steady clock are not.
    :ivar on_call: may answer a request instead of the service.
    :ivar asked: when the service was asked for what, in seconds from the beginning, whatever came back.
    """

    sandbox: Sandbox | None = None
    offset: float = 0.0
    off: float = 0.0
    limit: float = 60 * 86_400.0
    began: float = field(default_factory=_REAL_MONOTONIC)
    on_call: Callable[[httpx.Request], httpx.Response | None] = lambda _: None
    asked: list[tuple[float, str]] = field(default_factory=list)
    _owed: float = 0.0
    _in_flight: int = 0
    _changed: threading.RLock = field(default_factory=threading.RLock)
    _alarms: dict[object, tuple[float, int]] = field(default_factory=dict)
    _plans: list[tuple[float, int, Callable[[], Any]]] = field(default_factory=list)
    _planned: int = 0
    _strangers: dict[int, threading.Thread | None] = field(default_factory=dict)
    _is_paying: bool = False

    @property
    def now(self) -> float:
        return self.monotonic() - self.began

    def monotonic(self) -> float:
        return _REAL_MONOTONIC() + self.offset

    def time(self) -> float:
        return _REAL_TIME() + self.offset + self.off

    def after(self, seconds: float, action: Callable[[], Any]) -> None:
        self._planned += 1
        self._plans.append((self.monotonic() + seconds, self._planned, action))

    def skip(self, seconds: float) -> None:
        """Let time pass at once, as on a machine that was suspended."""
        with self._changed:
            self.offset += seconds
            self._owed += seconds

    def set_calendar(self, off: float) -> None:
        """Set the calendar of this process, but neither its steady clock nor the service."""
        self.off = off

    @contextmanager
    def running(self) -> Iterator[VirtualTime]:
        threads = {thread for thread, frame in _frames().items() if not _is_of_a_pool(frame)}
        known = {thread.ident: thread for thread in threading.enumerate()}
        others = {thread for thread in threads if not self._is_of_the_service(thread)} - {threading.get_ident()}
        self._strangers = {thread: known.get(thread) for thread in others}
        now = pendulum.now
        http = httpx.HTTPTransport
        with (
            mock.patch("time.time", self.time),
            mock.patch("time.monotonic", self.monotonic),
            mock.patch("time.sleep", lambda seconds: self._sleep(seconds, _REAL_SLEEP)),
            mock.patch.object(queue, "time", self.monotonic),
            mock.patch.object(threading.Condition, "wait", self._waiting()),
            mock.patch.object(timezone, "utcnow", self._utcnow),
            mock.patch.object(pendulum, "now", lambda tz=None: now(tz) + self._ahead()),
            mock.patch.object(http, "handle_request", self._asking(http.handle_request)),
        ):
            yield self
        self._pay()

    def _utcnow(self) -> datetime:
        return datetime.now(UTC) + self._ahead()

    def _ahead(self) -> timedelta:
        return timedelta(seconds=self.offset + self.off)

    def _waiting(self) -> Callable[..., bool]:
        def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
            if timeout is None or timeout <= 0 or self._is_stranger(threading.get_ident()):
                return _REAL_WAIT(condition, timeout)
            return bool(self._sleep(timeout, lambda seconds: _REAL_WAIT(condition, seconds)))

        return wait

    def _asking(self, handle: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
        def asked(transport: Any, request: httpx.Request) -> httpx.Response:
            if (answer := self._answer(request)) is not None:
                return answer
            with self._changed:
                self._in_flight += 1
            try:
                return handle(transport, request)
            finally:
                with self._changed:
                    self._in_flight -= 1

        return asked

    def run(self, scene: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector(self))) as runner:
            return runner.run(scene)

    def _answer(self, request: httpx.Request) -> httpx.Response | None:
        self._pay()
        if request.url.path.startswith("/_sandbox"):
            return None
        self.asked.append((self.now, request.url.path))
        if (answer := self.on_call(request)) is None:
            return None
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))

    def _sleep(self, seconds: float, look: Callable[[float], Any]) -> Any:
        """Sleep until ``look``, which takes the real seconds that it may take, returns something true."""
        alarm, until = object(), self.monotonic() + seconds
        self._alarms[alarm] = until, threading.get_ident()
        found = None
        try:
            looks = 0
            while not (found := look(_SLICE if looks else 0.0)) and self.monotonic() < until:
                looks = looks + 1 if self._everybody_sleeps() else 1
                if looks > _LOOKS:
                    self._pass_on()
                    looks = 0
            return found
        finally:
            del self._alarms[alarm]

    def _everybody_sleeps(self) -> bool:
        if self._in_flight:
            return False
        asleep = {thread for _, thread in list(self._alarms.values())}
        frames = _frames()
        return all(
            thread in asleep or self._is_stranger(thread) or _is_waiting(frame) for thread, frame in frames.items()
        )

    def _pass_on(self) -> None:
        if not self._changed.acquire(blocking=False):
            return
        try:
            now = self.monotonic()
            wakes = min(at for at, _ in list(self._alarms.values()))
            plan = min(self._plans, default=None)
            until = min(wakes, plan[0]) if plan else wakes
            if until == math.inf:
                return
            if until > now:
                self.skip(until - now)
            assert self.now < self.limit, f"nothing has ended this in {self.limit:.0f} seconds"
            if plan and plan[0] <= until:
                self._plans.remove(plan)
                plan[2]()
        finally:
            self._changed.release()

    def _pay(self) -> None:
        """Set the sandbox's clock forward, just before somebody asks it."""
        with self._changed:
            if self._is_paying or not self.sandbox:
                return
            owed, self._owed = self._owed, 0.0
            self._is_paying = True
            try:
                if owed > 0:
                    self.sandbox.advance_clock(owed)
            finally:
                self._is_paying = False

    def _is_stranger(self, thread: int) -> bool:
        """Return whether a thread ran before; the id of one that has ended is given again."""
        known = self._strangers.get(thread)
        return thread in self._strangers and (known is None or known.is_alive())

    @staticmethod
    def _is_of_the_service(thread: int) -> bool:
        frame: FrameType | None = _frames().get(thread)
        while frame:
            if "uvicorn" in frame.f_code.co_filename or "anyio" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False


def _is_waiting(frame: FrameType) -> bool:
    if _is_of_a_pool(frame):  # and waits if there is nothing to do
        return frame.f_locals["work_queue"].empty() and not frame.f_locals.get("work_item")
    return _place(frame) in _WAITING


def _frames() -> dict[int, FrameType]:
    """Return each thread's frame. In Python 3.11.7, a garbage collection during the call deadlocks (gh-106883)."""
    with _LOOKING:
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            gc.enable()


def _is_of_a_pool(frame: FrameType) -> bool:
    return _place(frame) == ("thread.py", "_worker")


def _place(frame: FrameType) -> tuple[str, str]:
    return frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        look = super().select
        return self._clock._sleep(math.inf if timeout is None else timeout, look) or []
