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

from outbound_transfer.client.errors import CallsStopped

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

    After a failure no further upload starts; those that run are stopped, and awaited until it is known what became of
    each. If this thread is interrupted, they are stopped and not awaited for long.

    :param first_accepted: is done as soon as the service has accepted the first upload; may stay undone.
    :param stop: makes the uploads that run raise :class:`.CallsStopped` soon.
    :raises BaseException: the first failure; further ones are logged.
    """
    waiting, running, failure = iter(uploads), set[Future[T]](), None
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
                error = future.exception()
                if error is None:
                    on_finished(future.result())
                elif failure is None:
                    failure = error
                    stop()
                elif not isinstance(error, CallsStopped):
                    log.warning("Another upload failed, too: %s", error)
            start(0 if failure else max_parallel - len(running))
            wait(running, return_when=FIRST_COMPLETED)
    except BaseException:
        stop()
        wait(running, STOP_TIMEOUT)
        raise
    finally:
        threads.shutdown(wait=False)
    if failure:
        raise failure
