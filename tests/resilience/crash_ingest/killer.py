"""Kills a process (SIGKILL) at one of its steps, and runs what is killed in a process of its own."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: When, seen from a step. ``during`` is a race that the kill wins most of the time.
MOMENTS = ("before", "during", "after")


@dataclass
class Killer:
    """Kills its process at the n-th step of a destination (from 1), which it reports to a pipe.

    :ivar at: the step; 0: none.
    """

    at: int
    moment: str
    report: int
    count: int = 0

    def step(self, what: str, run: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count != self.at:
            return run()
        os.write(self.report, what[:60].encode())
        if self.moment == "before":
            _kill()
        if self.moment == "during":
            threading.Timer(random.uniform(0, 0.002), _kill).start()
        try:
            return run()
        finally:
            _kill()  # after a statement that fails, too

    def watch(self, owner: Any, name: str, what: str | Callable[..., str]) -> None:
        """Make a step of each call of a function or method; for a process that ends with it."""
        inner = getattr(owner, name)

        def step(*args: Any, **options: Any) -> Any:
            said = what if isinstance(what, str) else what(*args, **options)
            return self.step(said, lambda: inner(*args, **options))

        setattr(owner, name, step)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def in_a_process(work: Callable[[int], Any]) -> tuple[int, str]:
    """Run ``work`` in a forked process; how it ended (minus the signal), and what it wrote to its pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            work(write)
            os._exit(0)
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode()[:2_000])
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.decode()
