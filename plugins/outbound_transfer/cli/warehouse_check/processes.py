"""Processes that do one thing in a warehouse, and that may be killed (SIGKILL) at one of its steps."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

from outbound_transfer.warehouse.database import Warehouse

#: When a process is killed, seen from one of its steps. ``during`` is a race that the kill mostly wins.
TIMINGS: Final = ("before", "during", "after")

#: Seconds to a kill during a step at most: a step takes microseconds in a file, and part of a second in a cloud.
_DELAYS: Final = (0.0005, 0.005, 0.1)

#: Methods of connections and their cursors that are steps.
_STEPS: Final = frozenset(("execute", "executemany", "copy", "copy_expert", "commit", "close"))

_INTERRUPTS: Final = frozenset((signal.SIGINT, signal.SIGTERM))

# Forked, as a new interpreter would import Airflow each time, which takes seconds.
_FORK: Final = get_context("fork")


class ProcessFailed(Exception):
    """A process ended with an error, which is the text of this one."""


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until :meth:`WarehouseProcess.result` waits.

    Python drops an exception that is raised in a hook of a fork, and a process whose start is interrupted is one that
    nobody knows: it would write into tables that are dropped.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)  # raises what has waited
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)


@dataclass
class Kill:
    """Kills its process at a step of a warehouse: connecting, a statement, a commit or closing.

    :ivar at: number of the step, from 1; 0 counts the steps only.
    """

    at: int = 0
    timing: str = "after"
    step: str = ""
    steps: int = 0

    def watch(self, warehouse: Warehouse, notify: Callable[[str], None]) -> None:
        """Count the steps of a warehouse from now on.

        :param notify: called with the step before the process is killed.
        """
        connect = warehouse.connect
        warehouse.connect = lambda: _Watched(self._run("connect", connect, notify), self, notify)

    def _run(self, step: str, run: Callable[[], Any], notify: Callable[[str], None]) -> Any:
        self.steps += 1
        if self.steps != self.at:
            return run()
        notify(" ".join(step.split())[:60])
        if self.timing == "before":
            _kill()
        if self.timing == "during":
            threading.Timer(random.uniform(0, random.choice(_DELAYS)), _kill).start()  # noqa: S311
        try:
            return run()
        finally:
            _kill()  # after a statement that fails, too: some databases are asked so whether a table exists


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class _Watched:
    """A connection or a cursor of one that reports its steps."""

    def __init__(self, inner: Any, kill: Kill, notify: Callable[[str], None]) -> None:
        self.__dict__.update(inner=inner, kill=kill, notify=notify)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "cursor":
            return lambda: _Watched(found(), self.kill, self.notify)
        if name in _STEPS:
            return lambda *arguments: self.kill._run(
                str(arguments[0]) if arguments else name, lambda: found(*arguments), self.notify
            )
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


class WarehouseProcess:
    """A process that runs ``work`` with a warehouse.

    :param work: its result must be picklable.
    :param kill: when it is killed; it is not if None.
    """

    def __init__(self, warehouse: Warehouse, work: Callable[[Warehouse], Any], kill: Kill | None = None) -> None:
        self._receiver, sender = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_run, args=(warehouse, work, kill, sender), daemon=True)
        self._process.start()
        sender.close()
        self.step = ""

    def result(self) -> Any:
        """Wait for the process; return the result of ``work``, or None if it was killed (at :attr:`step`).

        If this is interrupted, the process still ends what it does; it is killed if that is interrupted, too.

        :raises ProcessFailed: ``work`` has raised an error, or the process has died of something else.
        """
        found = None
        try:
            while True:
                kind, found = self._receive()
                if kind == "step":
                    self.step, found = found, None
                elif kind == "error":
                    raise ProcessFailed(found)
        except EOFError:
            pass
        finally:
            self._join()
        if self._process.exitcode not in (0, -signal.SIGKILL):
            raise ProcessFailed(f"a process ended with {self._process.exitcode}")
        return found

    def _receive(self) -> Any:
        with _interruptible():
            return self._receiver.recv()

    def _join(self) -> None:
        try:
            with _interruptible():
                self._process.join()  # a probe drops its table, which nobody else knows
        finally:
            self.stop()
            self._receiver.close()

    def stop(self) -> None:
        """Kill the process, if it still runs."""
        self._process.kill()
        self._process.join()


def _run(warehouse: Warehouse, work: Callable[[Warehouse], Any], kill: Kill | None, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its processes, and cleans up
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
    try:
        if kill:
            kill.watch(warehouse, lambda step: sender.send(("step", step)))
        result = work(warehouse)
        sender.send(("result", kill.steps if kill else result))
    except Exception as error:
        sender.send(("error", f"{type(error).__name__}: {error}"))
