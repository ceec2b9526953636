"""The fault matrix of the task state store: what a delivery does where its memory fails it at any moment.

A schedule is a store, one trouble of it at one of its reads or writes, and one service fault or none that ends the
first try; then the task is retried, and cleared. The store is Airflow's own, or its object-storage backend with real
files, which a try that Airflow has given up still writes to. The sandbox's ledger judges: nothing is sent twice, and
whoever is not served reads why.

The same for a delivery in three tasks, of which one attaches: it is retried, then cleared with other files each time,
and what is sent holds the files of the last clear or is not sent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

from airflow.sdk import ObjectStoragePath

from outbound_transfer.operators.transfer import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from resilience.fault_matrix.matrix import (
    BY_NAME,
    DELIVERY,
    RETRIES,
    SEND,
    FaultedRun,
    Harness,
    Outcome,
    says_sent,
)
from support.tasks import FakeTaskInstance, InMemoryStateStore

#: Reads and writes of the store that a delivery with a retry and two clears makes at most.
MOMENTS = range(70)

#: What ends the first try, or does not.
FAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "no fault": (),
    **{
        f"{name} at {where}": ({**BY_NAME[name].fault, "skip": skip}, *[{**BY_NAME["503"].fault}] * 9)
        for name in ("500 after", "reset before", "503")
        for where, skip in (("create", 0), ("attach", 2), ("send", SEND))
    },
}


#: Reads and writes of the store that a task makes at most that attaches files, and is cleared twice.
ATTACH_MOMENTS = range(80)

#: What ends the first try of that task, or does not: its first call reads the draft.
ATTACH_FAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "no fault": (),
    "500 after at attach": ({**BY_NAME["500 after"].fault, "skip": 1}, *[{**BY_NAME["503"].fault}] * 9),
}

#: Positions of the files that the task wants at first, and after each clear.
ATTACH_WANTED = ([0], [1], [2])


class Trouble(Enum):
    """What may go wrong with one read or write."""

    FORGETS = "a read is answered with nothing, as by an API server that is older or restarting"
    FAILS = "a read or a write is refused"
    LOSES = "a write is taken and not kept"
    EMPTIES = "everything that was stored is gone"
    GIVES_UP = "Airflow gives the try up: it reads nothing, and its writes are refused but for the objects"


class Refused(Exception):
    """Airflow's answer where it is not well."""


@dataclass
class ObjectStore(InMemoryStateStore):
    """The task state store over Airflow's object-storage backend: references in the database, values in files."""

    folder: str = field(default_factory=tempfile.mkdtemp)

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self.values:
            return default
        with self._backend() as backend:
            return backend.deserialize_task_state_store_from_ref(self.values[key])

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.values[key] = self.write(key, value)

    def write(self, key: str, value: Any) -> str:
        """The object alone."""
        from airflow.sdk.state import TaskScope  # from Airflow 3.3 on

        scope = TaskScope(dag_id="dag", run_id="run", task_id="task", map_index=-1)
        with self._backend() as backend:
            return str(backend.serialize_task_state_store_to_ref(value=value, key=key, scope=scope))

    @contextmanager
    def _backend(self) -> Iterator[Any]:
        from airflow.providers.common.io.state_store import backend as object_storage  # from Airflow 3.3 on

        base = ObjectStoragePath(f"file://{self.folder}")
        with mock.patch.object(object_storage, "_get_base_path", return_value=base):
            yield object_storage.StateStoreObjectStorageBackend()


@dataclass
class Troubled(InMemoryStateStore):
    """A store with one trouble at its ``at``-th read or write."""

    inner: InMemoryStateStore = field(default_factory=InMemoryStateStore)
    trouble: Trouble = Trouble.FORGETS
    at: int = 0
    met: bool = False
    given_up: bool = False

    def _is_now(self) -> bool:
        self.at -= 1
        if self.at != -1:
            return False
        self.met = True
        if self.trouble is Trouble.EMPTIES:
            self.inner.values.clear()
        self.given_up = self.trouble is Trouble.GIVES_UP
        return True

    def get(self, key: str, default: Any = None) -> Any:
        is_now = self._is_now()
        if is_now and self.trouble is Trouble.FAILS:
            raise Refused
        if (is_now and self.trouble is Trouble.FORGETS) or self.given_up:
            return default
        return self.inner.get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        is_now = self._is_now()
        if is_now and self.trouble is Trouble.LOSES:
            return
        if self.given_up and isinstance(self.inner, ObjectStore):
            self.inner.write(key, value)
        if (is_now and self.trouble is Trouble.FAILS) or self.given_up:
            raise Refused
        self.inner.set(key, value, retention=retention)


STORES: dict[str, type[InMemoryStateStore]] = {"native": InMemoryStateStore, "object storage": ObjectStore}


@dataclass(frozen=True)
class StoreSchedule:
    """One store with one trouble at one moment, beside one fault of the service."""

    store: str
    trouble: Trouble
    at: int
    fault: str
    is_attach: bool = False

    def __str__(self) -> str:
        step = "attach, " if self.is_attach else ""
        return f"{step}{self.store}: {self.trouble.name} at {self.at}, {self.fault}"


def store_schedules() -> list[StoreSchedule]:
    """Every one."""
    return [
        StoreSchedule(store, trouble, at, fault)
        for store in STORES
        for trouble in Trouble
        for at in MOMENTS
        for fault in FAULTS
    ]


def attach_schedules() -> list[StoreSchedule]:
    """Every one of the task that attaches."""
    return [
        StoreSchedule(store, trouble, at, fault, is_attach=True)
        for store in STORES
        for trouble in Trouble
        for at in ATTACH_MOMENTS
        for fault in ATTACH_FAULTS
    ]


def run_store_schedule(harness: Harness, schedule: StoreSchedule) -> Outcome:
    """Deliver, with a retry; then clear, twice: with the store as it is by then, and once more."""
    if schedule.is_attach:
        return _run_attach(harness, schedule)
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    run.plan(*FAULTS[schedule.fault])
    ti = run.task()
    store = Troubled(inner=STORES[schedule.store](), trouble=schedule.trouble, at=schedule.at)
    ti.store = store
    violations = []
    for clear in range(3):
        if clear:
            ti.clear()
        run.result, run.error = run.result_of(ti)
        run.sandbox.clear_faults()  # the judge asks, too
        violations += [*run.judge.violations(), *_untold(run)]
        store.given_up = False  # the next try is not the one that was given up
    billed = run.judge.billed()
    return Outcome((), "sent" if billed else "failed, not sent", run.judge.leaked(), tuple(violations), str(schedule))


def _untold(run: FaultedRun) -> Iterator[str]:
    billed = run.judge.billed()
    if run.error is None and billed != [run.result["id"]]:
        yield f"succeeded with {run.result['id']}, billed are {billed}"
    # Whom the store itself refuses gets no further, and reads of the store.
    if run.error is not None and not isinstance(run.error, Refused):
        for transfer_id in billed:
            if not says_sent(run.error, transfer_id):
                yield f"sent {transfer_id}, and the task's error does not say so: {run.error!r}"


def _run_attach(harness: Harness, schedule: StoreSchedule) -> Outcome:
    """Create a draft; attach, with a retry; clear, twice, with other files; send where the last one has succeeded."""
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    wanted: list[str] = []
    create = _step(run, lambda: CreateTransferOperator(task_id="create", **DELIVERY))
    draft, error = run.result_of(create)
    assert error is None
    ti = _step(run, lambda: AttachFilesOperator(task_id="attach", transfer_id=draft, files=list(wanted)))
    store = Troubled(inner=STORES[schedule.store](), trouble=schedule.trouble, at=schedule.at)
    ti.store = store
    run.plan(*ATTACH_FAULTS[schedule.fault])
    for clear, numbers in enumerate(ATTACH_WANTED):
        if clear:
            ti.clear()
        wanted[:] = [str(run.files[number]) for number in numbers]
        run.result, run.error = run.result_of(ti)
        run.sandbox.clear_faults()
        store.given_up = False
    violations = []
    if run.error is None:
        send = _step(run, lambda: SendTransferOperator(task_id="send", transfer_id=draft))
        send.upstream = {"create": create, "attach": ti}
        _, run.error = run.result_of(send)
        held = sorted(file["name"] for file in run.sandbox.transfer(draft)["files"])
        is_refused = "are not the files that the tasks upstream have attached" in str(run.error)
        if is_refused == (held == sorted(Path(file).name for file in wanted)) or (run.error and not is_refused):
            violations.append(f"sent {held} ({run.error!r}), wanted {wanted}")
    return Outcome((), "failed, not sent" if run.error else "sent", 0, tuple(violations), str(schedule))


def _step(run: FaultedRun, make: Callable[[], Any]) -> FakeTaskInstance:
    return FakeTaskInstance(make, run.time, RETRIES)
