"""Runs blocking functions beside an event loop, with a timeout and a bounded number of threads.

``anyio.to_thread`` and executors do not fit: their threads are not daemons, so the API server could not exit while a
database does not respond; and anyio starts another thread for each call that was given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class BoundedThreadRunner:
    """Runs functions in a few daemon threads. One that hangs keeps its thread; the process can exit without it.

    :param max_threads: maximum number of functions that run at the same time.
    :param timeout: seconds that a caller waits for a thread and the result together.
    """

    def __init__(self, max_threads: int, timeout: float) -> None:
        self.timeout, self._calls = timeout, SimpleQueue[tuple[Future[Any], Callable[[], Any]]]()
        for _ in range(max_threads):
            Thread(target=self._work, name="outbound-transfer-page", daemon=True).start()

    async def __call__(self, function: Callable[[], T]) -> T:
        """Run ``function`` and return its result, or raise its error.

        :raises asyncio.TimeoutError: no result in time. A function that has begun continues, and its result is dropped.
        """
        future: Future[T] = Future()
        self._calls.put((future, function))
        return await asyncio.wait_for(asyncio.wrap_future(future), self.timeout)

    def _work(self) -> None:
        while True:
            future, function = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)
                except BaseException as error:  # SystemExit and KeyboardInterrupt must not stop the event loop
                    future.set_exception(RuntimeError(f"the read failed with {error!r}"))
