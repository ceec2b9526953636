"""One poll for all triggers of a connection in one triggerer: Airflow's shared streams from 3.3 on, ours before."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

try:
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
except ImportError:  # before 3.3
    if not TYPE_CHECKING:
        AdvanceItem, SharedStreamProducer = Any, object

__all__ = ["AdvanceItem", "SharedStreamProducer", "subscribe"]

T = TypeVar("T")

#: By event loop: `dag.test()` runs each trigger in a loop of its own.
_polls: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Poll[Any]]]] = WeakKeyDictionary()


async def subscribe(key: Hashable, open_stream: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield what a stream yields from now on. All subscribers of one key in one event loop share the stream.

    :param open_stream: opens the stream for the first subscriber. It is closed when the last one leaves. An error of
        the stream is raised in every subscriber, and its end ends all of them.
    """
    polls = _polls.setdefault(asyncio.get_running_loop(), {})
    poll = polls.get(key)
    if poll is None or poll.task.done():
        poll = polls[key] = _Poll(open_stream)
    queue: asyncio.Queue[Any] = asyncio.Queue()
    poll.queues.add(queue)
    try:
        while not isinstance(item := await queue.get(), _Finished):
            yield item
        if item.error:
            raise item.error
    finally:
        poll.queues.discard(queue)
        if not poll.queues:
            poll.task.cancel()
            if polls.get(key) is poll:
                del polls[key]


class _Finished(NamedTuple):
    """A stream has finished."""

    error: Exception | None


class _Poll(Generic[T]):
    """A task that reads a stream, and the queues of its subscribers."""

    def __init__(self, open_stream: Callable[[], AsyncGenerator[T, None]]) -> None:
        self.queues: set[asyncio.Queue[Any]] = set()
        # Without the context of the first subscriber, whose log and connections would stick to the poll.
        self.task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._read(open_stream))

    async def _read(self, open_stream: Callable[[], AsyncGenerator[T, None]]) -> None:
        error: Exception | None = RuntimeError("the shared poll was cancelled")
        try:
            async with aclosing(open_stream()) as stream:
                async for item in stream:
                    self._notify(item)
            error = None
        except Exception as raised:
            error = raised
        finally:
            self._notify(_Finished(error))

    def _notify(self, item: Any) -> None:
        for queue in self.queues:
            queue.put_nowait(item)
