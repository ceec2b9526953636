"""Run several uploads at once, in threads.

Only the thread of the task talks to Airflow: before 3.2, another one may take the response that it waits for. So an
upload in a thread sends, reads and logs, and this thread stores what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, cast

from outbound_transfer.protocol.deferral import CallsStopped, DeferRequested, combine_requests

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

T = TypeVar("T")

#: Seconds that an interrupted task gives its uploads to break off. Those that do not are left alone.
STOP_TIMEOUT: Final = 1.0


def run_uploads(
    uploads: Iterable[Callable[[], T]],
    max_parallel: int,
    *,
    first_accepted: Future[None],
    on_finished: Callable[[T], object],
    stop: Callable[[], object],
    log: Logger,
) -> None:
    """Run uploads in threads, at most ``max_parallel`` at once, and pass each result to ``on_finished`` in this thread.

    The first runs alone until it has finished or the service has accepted it.

    After a failure no further upload starts. If one asks for a deferral, those that run are finished first: their bytes
    would have to be sent again. If one fails, they are stopped, and awaited until it is known what became of each. If
    this thread is interrupted, they are stopped and not awaited for long.

    :param first_accepted: is done as soon as the service has accepted the first upload; may stay undone.
    :param stop: makes the uploads that run raise :class:`.CallsStopped` soon.
    :raises DeferRequested: for all that asked for a deferral, if none failed.
    :raises BaseException: the first failure; further ones are logged.
    """
    waiting, running, failures = iter(uploads), set[Future[T]](), _Failures(stop, log)
    threads = ThreadPoolExecutor(max_parallel, thread_name_prefix="upload")

    def start(count: int) -> None:
        # Each in a context of its own: Airflow's log takes the fields of its lines from there.
        running.update(threads.submit(copy_context().run, upload) for upload in islice(waiting, count))

    try:
        start(1)
        wait([*running, cast("Future[T]", first_accepted)], return_when=FIRST_COMPLETED)
        while running:
            for future in [each for each in running if each.done()]:
                running.remove(future)
                if failure := future.exception():
                    failures.add(failure)
                else:
                    on_finished(future.result())
            start(0 if failures else max_parallel - len(running))
            wait(running, return_when=FIRST_COMPLETED)
    except BaseException:
        stop()
        wait(running, STOP_TIMEOUT)
        raise
    finally:
        threads.shutdown(wait=False)
    failures.raise_error()


class _Failures:
    """The failures of uploads. An error counts more than a deferral: what it says is lost if the task is deferred."""

    def __init__(self, stop: Callable[[], object], log: Logger) -> None:
        self._stop, self._log = stop, log
        self._error: BaseException | None = None
        self._deferrals: list[DeferRequested] = []

    def __bool__(self) -> bool:
        return self._error is not None or bool(self._deferrals)

    def add(self, failure: BaseException) -> None:
        """Keep the first error, and stop the other uploads because of it."""
        if isinstance(failure, DeferRequested):
            self._deferrals.append(failure)
        elif self._error is None:
            self._error = failure
            self._stop()
        elif not isinstance(failure, CallsStopped):
            self._log.warning("Another upload failed, too: %s", failure)

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        if self._deferrals:
            raise combine_requests(self._deferrals)
