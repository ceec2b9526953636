"""Runs blocking functions beside an event loop, with a timeout and a bounded number of threads.

``anyio.to_thread`` with a ``CapacityLimiter`` does not fit: an abandoned call returns its token while its thread still
hangs, so a database that never responds would gather threads; and its threads are not daemons, so the API server could
not exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class BoundedThreadRunner:
    """Runs each function in a daemon thread of its own.

    A function that hangs occupies its thread, so that a database that never responds costs at most ``max_threads``
    threads. The process can exit without them.

    :param max_threads: maximum number of functions that run at the same time.
    :param timeout: seconds that a caller waits for a thread and the result together.
    """

    def __init__(self, max_threads: int, timeout: float) -> None:
        self._slots, self.timeout = asyncio.Semaphore(max_threads), timeout

    async def __call__(self, function: Callable[[], T]) -> T:
        """Run ``function`` and return its result, or raise its error.

        :raises asyncio.TimeoutError: no result in time. The function continues, and its result is dropped.
        """
        return await asyncio.wait_for(self._run_in_thread(function), self.timeout)

    async def _run_in_thread(self, function: Callable[[], T]) -> T:
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        thread = Thread(target=self._run, args=(function, loop, future), name="outbound-transfer-page", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system can start no more threads
            self._slots.release()
            raise
        return await future

    def _run(self, function: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]) -> None:
        try:
            result: Any = function()
            setter = future.set_result
        except BaseException as error:  # the slot is released in any case
            # SystemExit and KeyboardInterrupt must not stop the event loop.
            result = error if isinstance(error, Exception) else RuntimeError(f"the read failed with {error!r}")
            setter = future.set_exception  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, future, setter, result)

    def _finish(self, future: asyncio.Future[Any], setter: Callable[[Any], None], result: Any) -> None:
        self._slots.release()
        if not future.cancelled():
            setter(result)
