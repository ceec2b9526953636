"""Call Airflow from threads and from a triggerer's event loop: up to 3.2.1, calls take each other's responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

import attrs
from airflow.sdk import Connection

T = TypeVar("T")

_locks: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


async def call_airflow(function: Callable[[], T]) -> T:
    """Run a function that may ask Airflow, such as for a connection, in a thread; return its result.

    One runs at a time, to its end even if the caller is cancelled: otherwise, before Airflow 3.2.2, the whole triggerer
    ends with ``Response read out of order!``.
    """

    async def run_alone() -> T:
        from asgiref.sync import sync_to_async  # only the triggerer has imported it already

        async with _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await sync_to_async(function)()

    task = asyncio.ensure_future(run_alone())
    # Retrieved here, as nobody waits for it once the caller is cancelled; asyncio would log it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def with_parsed_extra(connection: Connection) -> Connection:
    """Return a copy whose extra fields are parsed, and masked in logs, here and once, so that any thread may read them.

    Airflow sends them to the supervisor to be masked whenever they are read. A server's own connection is returned.
    """
    if not isinstance(connection, Connection):
        return connection
    extra = connection.extra_dejson
    parsed: Any = type("ParsedConnection", (Connection,), {"extra_dejson": property(lambda _: dict(extra))})
    return cast("Connection", parsed(**attrs.asdict(connection, recurse=False)))
