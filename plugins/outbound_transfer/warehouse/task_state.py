"""What a task instance remembers from try to try, in a table: only its newest try can change it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from outbound_transfer.airflow_compat.task_attempt import StaleAttempt, TaskAttempt
from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.errors import UnreliableTable
from outbound_transfer.warehouse.schema import STATE, checked_version, ensure_schema
from outbound_transfer.warehouse.tables import TASK_STATE
from outbound_transfer.warehouse.timestamps import format_timestamp, utc_now

_WHERE: Final = "WHERE [dag_id] = ? AND [run_id] = ? AND [task_id] = ? AND [map_index] = ?"


class _Row(NamedTuple):
    run_started_at: str
    try_number: int
    state: str


class TaskState:
    """The state of one task instance, claimed by one of its tries.

    :param attempt: the try. From its first access on, older tries can no longer read or write.
    """

    def __init__(self, warehouse: Warehouse, attempt: TaskAttempt, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._warehouse, self._attempt, self._now = warehouse, attempt, clock
        self._task = attempt[:4]
        self._is_claimed = False

    def get(self, key: str, default: Any = None) -> Any:
        """Return what any try stored last under ``key``.

        :raises StaleAttempt: a later try has begun.
        """
        self._claim_once()
        with self._warehouse.read() as tx:
            return self._values(self._own_row(tx)).get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:  # noqa: ARG002  # until it is cleaned
        """Store a value that JSON can represent.

        :raises StaleAttempt: a later try has begun.
        """
        self._claim_once()
        self._warehouse.retry_on_conflict(lambda: self._set(key, value))

    def _set(self, key: str, value: Any) -> None:
        with self._warehouse.transaction() as tx:
            self._lock_row(tx)
            values = self._values(self._own_row(tx)) | {key: value}
            self._write(tx, values)

    def _claim_once(self) -> None:
        if not self._is_claimed:
            ensure_schema(self._warehouse, STATE, self._now())
            self._warehouse.retry_on_conflict(self._claim)
            self._is_claimed = True

    def _claim(self) -> None:
        with self._warehouse.transaction() as tx:
            self._lock_row(tx)
            row = self._row(tx)
            if row is None:
                now = format_timestamp(self._now())
                values = (*self._task, self._attempt.run_started_at, self._attempt.try_number, "{}", now)
                self._warehouse.insert(tx, TASK_STATE, [values])
            elif self._attempt.remembers(row.run_started_at):
                self._check_not_stale(row)
                self._write(tx, self._values(row))
            else:
                self._write(tx, {})

    def _check_not_stale(self, row: _Row) -> None:
        if row.try_number > self._attempt.try_number:
            raise self._attempt.superseded(row.try_number)

    def _own_row(self, tx: Any) -> _Row:
        row = self._row(tx)
        if row is None:
            raise StaleAttempt("The row of this task's state is gone, so what it may have sent is not known")
        self._attempt.remembers(row.run_started_at)
        self._check_not_stale(row)
        if (row.run_started_at, row.try_number) != (self._attempt.run_started_at, self._attempt.try_number):
            # A replica that is behind, or a database that was restored.
            raise UnreliableTable(
                "The database does not return the row of this task as this try has written it: the connection must "
                "lead to the primary, not to a replica"
            )
        return row

    def _lock_row(self, tx: Any) -> None:
        # No other try changes it between the read and the write.
        self._warehouse.run(tx, f"UPDATE {{task_state}} SET [updated_at] = [updated_at] {_WHERE}", self._task)  # noqa: S608

    def _row(self, tx: Any) -> _Row | None:
        columns = "[dag_id], [run_id], [task_id], [run_started_at], [try_number], [state]"
        query = f"SELECT {columns} FROM {{task_state}} {_WHERE}"  # noqa: S608
        rows = fetch_all(self._warehouse.run(tx, query, self._task))
        for *names, _, _, _ in rows:
            if tuple(names) != self._task[:3]:
                raise UnreliableTable(
                    f"The database does not return the row of {self._task[:3]} but of {tuple(names)}: the table's "
                    "columns need a collation that distinguishes case, accents and trailing spaces"
                )
        return _Row(*rows[0][3:]) if rows else None

    @staticmethod
    def _values(row: _Row) -> dict[str, Any]:
        return dict(json.loads(row.state))

    def _write(self, tx: Any, values: dict[str, Any]) -> None:
        changed = "[run_started_at] = ?, [try_number] = ?, [state] = ?, [updated_at] = ?"
        row = (
            self._attempt.run_started_at,
            self._attempt.try_number,
            json.dumps(values),
            format_timestamp(self._now()),
        )
        self._warehouse.run(tx, f"UPDATE {{task_state}} SET {changed} {_WHERE}", (*row, *self._task))  # noqa: S608


def clean_task_states(warehouse: Warehouse, older_than: datetime) -> int:
    """Delete the states that were last written before ``older_than``; return their number.

    Creates nothing: 0 if there is no table.

    :raises SchemaTooNew: the table was created by a newer version of this package.
    """
    with warehouse.transaction() as tx:
        if checked_version(warehouse, tx, STATE) is None:
            return 0
        cutoff = format_timestamp(older_than)
        warehouse.run(tx, "DELETE FROM {task_state} WHERE [updated_at] < ?", (cutoff,))
        return warehouse.dialect.rowcount(tx)
