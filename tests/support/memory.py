"""What a task remembers from try to try.

The harness keeps it in memory, one table for each sandbox: two :class:`~support.tasks.FakeTaskInstance` with the same
ids and the same sandbox are two processes of one task. It stands in for the table of deliveries of Airflow's settings.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock, local
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from outbound_transfer.delivery import place, shown
from outbound_transfer.delivery.forget import forget as forget_transfer
from outbound_transfer.store import deliveries
from outbound_transfer.store.rows import Kept, Stored
from support.calls import process

if TYPE_CHECKING:
    import pytest

    from outbound_transfer_sandbox.testing import Sandbox
    from support.tasks import FakeTaskInstance


class MemoryFailed(Exception):
    """The memory does not respond."""


@dataclass
class Table:
    rows: dict[str, tuple[int, Stored]] = field(default_factory=dict)
    runs: dict[tuple[str, str], datetime] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


@dataclass
class InMemoryRows:
    """The table as one process sees it. A dead process stores nothing."""

    table: Table = field(default_factory=Table)
    on_access: Callable[[], object] = lambda: None

    def read(self, key: str) -> tuple[int, str]:
        self.on_access()
        version, row = self.table.rows.get(key, (0, None))
        return version, row.memory if row else ""

    def put(self, key: str, version: int, row: Stored, kept: Kept | None = None) -> bool:
        self.on_access()
        if process.is_dead:
            return True
        with self.table.lock:
            if self.table.rows.get(key, (0, None))[0] != version:
                return False
            self.table.rows[key] = version + 1, row
            if kept:
                self.table.rows[kept.key] = 1, kept.row
        return True

    def find(self, transfer_id: str) -> list[tuple[str, str, bool]]:
        self.on_access()
        rows = list(self.table.rows.items())[::-1]
        return [(key, row.account, row.is_keyed) for key, (_, row) in rows if row.transfer_id == transfer_id]

    def run(self, work: Any, patience: float | None = None) -> None:
        """Show nothing: no page reads this table."""

    def find_twin(self, own: Collection[str], twin: str, run_started: str) -> str:
        self.on_access()
        others = (row for other, (_, row) in self.table.rows.items() if other not in own)
        twins = (row for row in others if (row.twin, row.phase) == (twin, "sending"))
        return next((row.transfer_id for row in twins if run_started in ("", row.run_started)), "")


def table_of(time: Any) -> Table:
    found: Table = vars(getattr(time, "sandbox", time)).setdefault("deliveries", Table())
    return found


def run_start(ti: FakeTaskInstance) -> datetime:
    return table_of(ti.time).runs.setdefault((ti.dag_id, ti.run_id), datetime.now(UTC))


def memory_of(ti: FakeTaskInstance) -> InMemoryRows:
    if ti.store is None:
        ti.store = InMemoryRows(table_of(ti.time))
    return ti.store


_current = local()
_require, _find = place.require_deliveries, place.find_rows


def _require_current() -> Any:
    rows = getattr(_current, "rows", None)
    return _require() if rows is None else SimpleNamespace(open=lambda: rows)


place.require_deliveries = _require_current
shown.find_rows = lambda: getattr(_current, "rows", None) or _find()


@contextmanager
def remembering(rows: InMemoryRows | None) -> Iterator[None]:
    """Let the tasks that this thread runs in the block remember there; None: by Airflow's settings."""
    before, _current.rows = getattr(_current, "rows", None), rows
    try:
        yield
    finally:
        _current.rows = before


def begin_anew(sandbox: Sandbox) -> None:
    vars(sandbox).pop("deliveries", None)


def at_access(ti: FakeTaskInstance, number: int, act: Callable[[], object]) -> None:
    """Let ``act`` happen right before this process reads or writes its memory, ``number`` accesses from now."""
    left = iter([*[lambda: None] * number, act])
    memory_of(ti).on_access = lambda: next(left, lambda: None)()


def refuse() -> None:
    raise MemoryFailed("the memory does not respond")


def fail(ti: FakeTaskInstance) -> None:
    memory_of(ti).on_access = refuse


def forget(ti: FakeTaskInstance, transfer_id: str, state: str = "success") -> str:
    """Let a transfer be forgotten, where every task has this state; the task to clear."""
    return forget_transfer(memory_of(ti), transfer_id, lambda *_: state, "ann")


def remembered(ti: FakeTaskInstance) -> str:
    return "".join(str(row) for row in memory_of(ti).table.rows.values())


def kept_in_a_database(ti: FakeTaskInstance) -> FakeTaskInstance:
    """Let the task be remembered in the provider's own database, by its settings."""
    ti.has_own_memory = False
    return ti


def age(file: Path, run_id: str, days: int) -> None:
    """Let everything of a run, in a SQLite file of :func:`keep_keys_in` or the local one, be older."""
    older = f"strftime('%Y-%m-%dT%H:%M:%f000Z', updated_at, '-{days} days')"
    with closing(sqlite3.connect(file)) as database, database:
        update = f"UPDATE outbound_transfer_deliveries SET updated_at = {older} WHERE instr(memory, ?)"
        database.execute(update, [run_id])


def remembered_runs(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        owners = database.execute("SELECT json_extract(memory, '$.owner') FROM outbound_transfer_deliveries")
        return sorted(json.loads(owner)[1] for (owner,) in owners if owner)


def settings(conn_id: str) -> dict[str, str]:
    return {"AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID": conn_id}


def is_configured() -> bool:
    return settings("").keys() <= os.environ.keys()


def keep_keys_in(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    """Let a database remember what was delivered under delivery keys."""
    for name, value in {"AIRFLOW_CONN_STATES": connection, **settings("states")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(deliveries, "PATIENCE", 1.0)


def keep_deliveries_in(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DELIVERIES", connection)
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID", "deliveries")
