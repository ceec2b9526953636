"""A process that outlives its try: Airflow has given it up, and runs the next tries while it waits, or while a request
of it is still on the network. It goes on later, in the middle of whatever happens then.

It runs in a thread of its own, and never at once with the others: one goes on where the other stops.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread, current_thread
from typing import Any, Final

from support.tasks import CrashableStateStore, FakeTaskInstance, ProcessCrashed, changed
from support.timeouts import TEST_TIMEOUT

#: Where a process stops, besides the operations of its requests.
WAIT: Final = "wait"


class GivenUp(Exception):
    """How a task ends that a user marks, whatever its process does."""


class OutlivingProcess:
    """The process of a task's newest try.

    :param stops_at: its next wait, or the operation of the request that arrives late.
    :param skip: so many such requests arrive in time.
    :param dies: the process died, and only its request is under way.
    :ivar versions: by file that it is to deliver, the digests that it had.
    :ivar is_stopped: whether it has stopped, and Airflow has given it up.
    """

    def __init__(
        self, name: str, ti: FakeTaskInstance, versions: dict[str, set[str]], stops_at: str, *, skip: int, dies: bool
    ) -> None:
        self.name, self.ti, self.versions, self.stops_at = name, ti, versions, stops_at
        self._skip, self._dies, self._is_dead = skip, dies, False
        self._process = copy.copy(ti)
        self._process.make = self._make
        self._process.store = CrashableStateStore(ti.store.values)
        self._halted, self._wakes = Event(), Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.is_stopped = False
        self.result: Any = None
        self.error: BaseException | None = None

    def _make(self) -> Any:
        operator = self.ti.make()
        # Its uploads go one after another: none runs while it has stopped.
        return changed(operator, {"max_parallel_uploads": 1} if hasattr(operator, "max_parallel_uploads") else {})

    @property
    def is_here(self) -> bool:
        """Whether the caller is this process."""
        return current_thread() is self._thread

    @property
    def has_sent(self) -> bool:
        """Whether its send is under way: nobody can call that back."""
        return self.is_stopped and self.stops_at == "send"

    def start(self) -> None:
        """Run it until it stops or ends."""
        self._thread.start()
        self._wait_for(self._halted)

    def finish(self) -> None:
        """Let it go on to its end; Airflow says of it what it says of the task now."""
        self._process.state = self.ti.state
        self._wakes.set()
        self._thread.join(TEST_TIMEOUT)
        assert not self._thread.is_alive(), "it does not end"
        if isinstance(self.error, AssertionError):
            raise self.error

    def abandon(self) -> None:
        """Let it end without another request."""
        self._is_dead = self._process.store.dead = True
        self._wakes.set()
        self._thread.join(TEST_TIMEOUT)

    def _run(self) -> None:
        try:
            self.result = self._process.run_once()
        except (Exception, ProcessCrashed) as error:
            self.error = error
        finally:
            self._halted.set()

    def stop(self) -> None:
        """Stop here, once."""
        self.is_stopped = self._process.is_given_up = True
        self._halted.set()
        self._wait_for(self._wakes)

    def at_wait(self) -> None:
        if self.stops_at == WAIT and not self.is_stopped:
            self.stop()

    def send(self, send: Callable[..., Any], *arguments: Any) -> Any:
        """Make a request of it, perhaps late."""
        http, settings, call, *secrets = arguments
        if self._is_dead:
            raise ProcessCrashed
        if self.is_stopped or call.operation.value != self.stops_at:
            return send(*arguments)
        if self._skip:
            self._skip -= 1
            return send(*arguments)
        if upload := call.upload:  # it was read already
            body = b"".join(upload.chunks())
            call = replace(call, upload=replace(upload, chunks=lambda: iter([body])))
        self.stop()
        if self._is_dead:
            raise ProcessCrashed
        response = send(http, settings, call, *secrets)
        if self._dies:
            self._is_dead = self._process.store.dead = True
            raise ProcessCrashed
        return response

    @staticmethod
    def _wait_for(event: Event) -> None:
        assert event.wait(TEST_TIMEOUT), "nothing happens"
