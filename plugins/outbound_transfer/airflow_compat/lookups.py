"""Let a trigger call Airflow from the triggerer's event loop: one call at a time, each to its end.

Before Airflow 3.2.2, two calls at once, or one that is cancelled, end the whole triggerer with ``Response read out of
order!``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_locks: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


async def call_airflow(function: Callable[[], T]) -> T:
    """Run a function that may ask Airflow, such as for a connection, in a thread; return its result.

    It runs to its end also if the caller is cancelled.
    """

    async def run_alone() -> T:
        from asgiref.sync import sync_to_async  # only the triggerer has imported it already

        async with _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await sync_to_async(function)()

    task = asyncio.ensure_future(run_alone())
    # Retrieved here, as nobody waits for it any more if the caller was cancelled; asyncio would log it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)
