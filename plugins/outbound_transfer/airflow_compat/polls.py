"""One poll for all triggers of a connection in one triggerer: Airflow's shared streams from 3.3 on, ours before."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
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


async def subscribe(key: Hashable, open_stream: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
    """Yield what a stream yields from now on. All subscribers of one key in one event loop share the stream.

    :param open_stream: opens the stream for the first subscriber. It is closed when the last one leaves. An error of
        the stream is raised in every subscriber, and its end ends all of them.
    """
    polls = _polls.setdefault(asyncio.get_running_loop(), {})
    poll = polls.get(key)
    if poll is None or poll.is_done:
        poll = polls[key] = _Poll(open_stream)
    queue = poll.join()
    try:
        while (item := await queue.get()) is not _FINISHED:
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        if poll.leave(queue) and polls.get(key) is poll:
            del polls[key]


_FINISHED: Final = object()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Poll(Generic[T]):
    """A task that reads a stream, and the queues of its subscribers."""

    def __init__(self, open_stream: Callable[[], AsyncIterator[T]]) -> None:
        self._queues: set[asyncio.Queue[Any]] = set()
        # Without the context of the first subscriber, whose log and connections would stick to the poll.
        self._task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._read(open_stream))

    @property
    def is_done(self) -> bool:
        return self._task.done()

    def join(self) -> asyncio.Queue[Any]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._queues.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[Any]) -> bool:
        """Return whether this was the last subscriber, so that the poll ends."""
        self._queues.discard(queue)
        if self._queues:
            return False
        self._task.cancel()
        return True

    async def _read(self, open_stream: Callable[[], AsyncIterator[T]]) -> None:
        last: Any = _FINISHED
        try:
            stream = open_stream()
            try:
                async for item in stream:
                    self._notify(item)
            finally:
                with suppress(AttributeError):
                    await stream.aclose()  # type: ignore[attr-defined]  # a generator
        except BaseException as error:
            last = _Failure(error if isinstance(error, Exception) else RuntimeError("the shared poll was cancelled"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._notify(last)

    def _notify(self, item: Any) -> None:
        for queue in self._queues:
            queue.put_nowait(item)
