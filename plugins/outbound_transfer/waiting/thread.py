"""Threads that keep neither an event loop nor the process from ending, as those of ``asyncio.to_thread`` would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def start_thread(work: Callable[[], Any]) -> Future[Any]:
    """Run a function in a thread of its own; return its result when it has one."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it from now on

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="outbound-transfer-poll", daemon=True).start()
    return future
