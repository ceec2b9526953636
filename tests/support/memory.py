"""What a task remembers from try to try. Tests share, delay and break it, and see nothing of what it is.

The harness keeps it by the identity of the task instance: two :class:`~support.tasks.FakeTaskInstance` with the same
ids and the same sandbox are two processes of one task. Today it is Airflow's task state store, which the context has.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.calls import process

if TYPE_CHECKING:
    import pytest

    from outbound_transfer_sandbox.testing import Sandbox
    from support.tasks import FakeTaskInstance


class MemoryFailed(Exception):
    """The memory does not respond."""


@dataclass
class InMemoryStateStore:
    """The task state store: JSON in, JSON out, as through Airflow's API. A dead process stores nothing.

    :ivar on_access: called before each access.
    """

    values: dict[str, str] = field(default_factory=dict)
    on_access: Callable[[], object] = lambda: None

    def get(self, key: str, default: Any = None) -> Any:
        self.on_access()
        return json.loads(self.values[key]) if key in self.values else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.on_access()
        assert value is not None, "Airflow refuses it"
        if process.is_dead:
            return
        self.values[key] = json.dumps(value)
        assert json.loads(self.values[key]) == value, "Airflow takes nothing but what JSON gives back"


def memory_of(ti: FakeTaskInstance) -> InMemoryStateStore:
    """Return what the harness gives the task to remember with."""
    if ti.store is None:
        memories = vars(getattr(ti.time, "sandbox", ti.time)).setdefault("memories", {})
        values = memories.setdefault((ti.dag_id, ti.run_id, ti.task_id, ti.map_index), {})
        ti.store = InMemoryStateStore(values)
    return ti.store


def begin_anew(sandbox: Sandbox) -> None:
    """Let no task instance remember anything, as in an Airflow of its own."""
    vars(sandbox).pop("memories", None)


def at_access(ti: FakeTaskInstance, number: int, act: Callable[[], object]) -> None:
    """Let ``act`` happen right before this process reads or writes its memory, ``number`` accesses from now."""
    left = iter([*[None] * number, act])
    memory_of(ti).on_access = lambda: (next(left, None) or _nothing)()


def fail(ti: FakeTaskInstance) -> None:
    """Let each access of this process to its memory fail."""
    memory_of(ti).on_access = refuse


def refuse() -> None:
    raise MemoryFailed("the memory does not respond")


def remembered(ti: FakeTaskInstance) -> str:
    """Return everything that is remembered, as one text."""
    return "".join(memory_of(ti).values.values())


def kept_in_a_database(ti: FakeTaskInstance) -> FakeTaskInstance:
    """Let the task be remembered in the provider's own database, by its settings."""
    ti.has_own_memory = False
    return ti


def age(file: Path, run_id: str, days: int) -> None:
    """Let everything of a run, in a SQLite file of :func:`keep_keys_in` or the local one, be older."""
    with closing(sqlite3.connect(file)) as database, database:
        where = "FROM outbound_transfer_memory WHERE run_id = ?"
        (last,) = database.execute(f"SELECT updated_at {where}", [run_id]).fetchone()
        older = (datetime.fromisoformat(last) - timedelta(days=days)).isoformat(timespec="microseconds")
        database.execute("UPDATE outbound_transfer_memory SET updated_at = ? WHERE run_id = ?", [older, run_id])


def remembered_runs(file: Path) -> list[str]:
    """Return the runs of which a SQLite file remembers deliveries."""
    with closing(sqlite3.connect(file)) as database:
        return [run_id for (run_id,) in database.execute("SELECT run_id FROM outbound_transfer_memory ORDER BY run_id")]


def settings(conn_id: str) -> dict[str, str]:
    """Return the environment in which a connection's database remembers deliveries."""
    return {"AIRFLOW__OUTBOUND_TRANSFER__STATE_CONN_ID": conn_id}


def keep_keys_in(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    """Let a database remember what was delivered under delivery keys."""
    for name, value in {"AIRFLOW_CONN_STATES": connection, **settings("states")}.items():
        monkeypatch.setenv(name, value)


def keep_deliveries_in(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    """Let the connection's database have the deliveries that the page and the commands show."""
    monkeypatch.setenv("AIRFLOW_CONN_DELIVERIES", connection)
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "deliveries")


def forget_keys(file: Path) -> None:
    """Lose what a SQLite file of :func:`keep_keys_in` remembers of delivery keys."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM outbound_transfer_memory")


def _nothing() -> None:
    pass
