"""Processes that are all stopped again, whatever they start themselves.

Each is the leader of a session of its own, which nothing that Airflow starts leaves: also an orphan is found.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

from .console import DemoFailed

#: How long processes may take to stop by themselves, in seconds.
GRACE: Final = 5.0
#: By how much the time at which a process began may seem to move, in seconds: it is reckoned from the system's clock.
CLOCK_SHIFT: Final = 10.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Signals:
    """Turns the first signal into :class:`Interrupted` and takes no further one, so that nothing disturbs the stop."""

    def __init__(self) -> None:
        self._held = False
        self._pending: int | None = None
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # Python passes it
        self.ignore()
        if self._held:
            self._pending = number
        else:
            raise Interrupted(number)

    @staticmethod
    def ignore() -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending is not None:
            raise Interrupted(self._pending)


@dataclass(frozen=True)
class Leader:
    """A started process; with `created` its id is never mistaken for a later process's."""

    name: str
    pid: int
    created: float


class Processes:
    """What was started, with a record in `folder` from which another process can stop it."""

    def __init__(self, folder: Path, signals: Signals) -> None:
        self._record = record_of(folder)
        self._logs = folder / "logs"
        self._signals = signals
        self.leaders: list[Leader] = []
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lasting: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def start(
        self, name: str, command: Sequence[str | Path], env: Mapping[str, str], *, is_one_shot: bool = False
    ) -> None:
        """Start a process; its output goes to its log. One that `is_one_shot` is left out of :meth:`check`."""
        # A signal between the start and the record would leave a process that nobody knows of.
        with self._signals.held(), self.log(name).open("wb") as log:
            child = subprocess.Popen(  # the commands are written in this package
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            if before := self._children.get(name):
                before.wait()  # it has died; another takes its place
            self._children[name] = child
            self._lasting |= {name: child} if not is_one_shot else {}
            self.leaders.append(Leader(name, child.pid, _created(child.pid) or time.time()))
            self._write()

    def has_finished(self, name: str) -> bool:
        """Whether a process that is meant to end has ended well; one that failed raises."""
        code = self._children[name].poll()
        if code:
            raise DemoFailed(f"{name} failed with exit code {code}.", self.log(name))
        return code == 0

    def check(self) -> None:
        """:raises DemoFailed: a process that is meant to run has ended."""
        for name, child in self._lasting.items():
            if child.poll() is not None:
                raise DemoFailed(f"{name} has ended by itself with exit code {child.returncode}.", self.log(name))

    def kill(self, name: str) -> None:
        """As a machine that is gone: SIGKILL to a process and all that it has started; :meth:`check` forgets it."""
        del self._lasting[name]
        gone = [leader for leader in self.leaders if leader.name == name]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none of them takes note of another's end
            _signal(members(gone), number)

    def _write(self) -> None:
        temporary = self._record.with_suffix(".new")
        temporary.write_text(json.dumps([asdict(leader) for leader in self.leaders], indent=1))
        temporary.replace(self._record)

    def stop(self) -> list[str]:
        left = stop(self.leaders, self._record)
        for child in self._children.values():
            # Its threads may end after it; unless it is waited for, it takes itself for running.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
        return left


def record_of(folder: Path) -> Path:
    return folder / "processes.json"


def recorded(folder: Path) -> list[Leader]:
    try:
        return [Leader(**leader) for leader in json.loads(record_of(folder).read_text())]
    except FileNotFoundError:
        return []


def members(leaders: Sequence[Leader]) -> list[psutil.Process]:
    # The id of a leader that has ended is given to no other process while its session has members.
    ours = {leader.pid: leader.created for leader in leaders if _is_or_was(leader)}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            since = ours.get(os.getsid(process.pid))
            is_ours = since is not None and process.create_time() > since - CLOCK_SHIFT
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def stop(leaders: Sequence[Leader], record: Path) -> list[str]:
    pids = {leader.pid for leader in leaders}
    _signal([process for process in members(leaders) if process.pid in pids], signal.SIGTERM)
    left = _gone(leaders, GRACE)
    for _ in range(10):
        # Children first: their parents are still there to take note of their end.
        _signal([process for process in left if process.pid not in pids] or left, signal.SIGKILL)
        left = left and _gone(leaders, 1.0)
    if not left:
        record.unlink(missing_ok=True)
    return [f"{process.pid} ({process.name()})" for process in left]


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _gone(leaders: Sequence[Leader], timeout: float) -> list[psutil.Process]:
    deadline = time.monotonic() + timeout
    while (left := members(leaders)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.2)  # reaps those that are our children
    return left


def _is_or_was(leader: Leader) -> bool:
    created = _created(leader.pid)
    return created is None or abs(created - leader.created) < CLOCK_SHIFT


def _created(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None
