"""Processes that deliver under one key, and that are killed (SIGKILL)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final
from unittest import mock

from sqlalchemy.engine.default import DefaultDialect

from support.keyed_tasks import keyed_task
from support.timeouts import TEST_TIMEOUT

# A fork of the test's own process could wait for ever for a lock that one of the sandbox's threads held.
_CONTEXT: Final = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "airflow.models",
        "airflow.providers.mysql.hooks.mysql",
        "airflow.providers.postgres.hooks.postgres",
        "airflow.providers.sqlite.hooks.sqlite",
        "outbound_transfer.operators.transfer",
    ]
)

#: Tries of a task: others may claim its key again and again.
_RETRIES: Final = 200


class FastClock:
    """Real time, in which no wait is long."""

    clock = staticmethod(time.monotonic)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, 0.05))


@dataclass(frozen=True)
class DatabaseKill:
    """SIGKILL of the own process at a transaction of the database, counted from 1.

    :ivar is_committed: just after it is committed; otherwise just before.
    """

    transaction: int
    is_committed: bool


class DeliveringProcess:
    """A process with the task of one run, which delivers under the key "k" until it succeeds.

    :param others: the runs of the other tasks that run; Airflow knows no task of another run.
    :param takeovers: tries of this task in which it takes them for dead all the same.
    """

    def __init__(
        self,
        run_id: str,
        arguments: Mapping[str, Any],
        *,
        others: Sequence[str] = (),
        takeovers: int = 0,
        kill: DatabaseKill | None = None,
    ) -> None:
        self._receiver, sender = _CONTEXT.Pipe(duplex=False)
        task = _Task(run_id, dict(arguments), tuple(others), takeovers)
        self._process = _CONTEXT.Process(target=_run, args=(task, kill, dict(os.environ), sender), daemon=True)
        self._process.start()
        sender.close()

    def result(self) -> str | None:
        """Return the id of its transfer; None if it was killed."""
        found: str | Exception | None = None
        if self._receiver.poll(TEST_TIMEOUT):
            try:
                found = self._receiver.recv()
            except EOFError:
                found = None
        self._receiver.close()
        self._process.join(TEST_TIMEOUT)
        if isinstance(found, Exception):
            raise found
        assert found or self._process.exitcode == -signal.SIGKILL, self._process.exitcode
        return found


@dataclass(frozen=True)
class _Task:
    run_id: str
    arguments: dict[str, Any]
    others: tuple[str, ...]
    takeovers: int

    def run(self) -> str:
        task = keyed_task(self.run_id, FastClock(), retries=_RETRIES, **self.arguments)

        def prepare() -> None:
            if task.try_number >= self.takeovers:
                task.airflow.update({(other, -1): "running" for other in self.others})
            time.sleep(random.uniform(0.0, 0.2) if task.try_number else 0.0)

        prepare()
        task.before_retry = prepare
        transfer_id: str = task.run()["id"]
        return transfer_id


def _run(task: _Task, kill: DatabaseKill | None, environment: dict[str, str], sender: Any) -> None:
    os.environ.update(environment)
    try:
        with killing(kill):
            sender.send(task.run())
    except Exception as error:
        sender.send(RuntimeError(repr(error)))


@contextmanager
def killing(kill: DatabaseKill | None) -> Iterator[None]:
    """Kill this process at a transaction of a database."""
    do_commit, count = DefaultDialect.do_commit, 0

    def counted(dialect: Any, connection: Any) -> None:
        nonlocal count
        count += 1
        is_this = kill is not None and count == kill.transaction
        if is_this and kill and not kill.is_committed:
            os.kill(os.getpid(), signal.SIGKILL)
        do_commit(dialect, connection)
        if is_this:
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(DefaultDialect, "do_commit", counted):
        yield
