"""Reads that may hang, beside an event loop that must not: a bounded wait, and a bounded number of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Reads:
    """Runs functions in threads of their own.

    A function that hangs keeps its thread and its place, so that a database that never answers costs ``at_once``
    threads and no more. They are daemons: the process ends without them.

    :param seconds: how long a caller waits, for a place and for the answer together.
    """

    def __init__(self, at_once: int, seconds: float) -> None:
        self._places, self.seconds = asyncio.Semaphore(at_once), seconds

    async def __call__(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises.

        :raises asyncio.TimeoutError: there was no answer in time. The function goes on alone.
        """
        return await asyncio.wait_for(self._read(function), self.seconds)

    async def _read(self, function: Callable[[], T]) -> T:
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        thread = Thread(target=self._run, args=(function, loop, answer), name="outbound-transfer-page", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left
            self._places.release()
            raise
        return await answer

    def _run(self, function: Callable[[], T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T]) -> None:
        try:
            result: Any = function()
            setter = answer.set_result
        except BaseException as error:  # whatever it is, the place is given back
            # What would end a process ends no event loop from here.
            result = error if isinstance(error, Exception) else RuntimeError(f"the read ended with {error!r}")
            setter = answer.set_exception  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, answer, setter, result)

    def _finish(self, answer: asyncio.Future[Any], setter: Callable[[Any], None], result: Any) -> None:
        self._places.release()
        if not answer.cancelled():
            setter(result)
