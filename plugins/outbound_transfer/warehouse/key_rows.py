"""One row for each key in a table: a document, which a transaction locks while it changes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from sqlalchemy import Table

from outbound_transfer.warehouse.database import Warehouse, scalar

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

#: What the row of a key is found by.
WHERE: Final = "WHERE [account] = ? AND [key_digest] = ?"


class Key(NamedTuple):
    """A key and what the service grants it.

    :ivar digest: of the key.
    :ivar conn_id: the Airflow connection that has the key.
    """

    account: str
    digest: str
    conn_id: str
    calls_per_minute: int


class _NoRow(Exception):
    """The key has no row yet, or somebody has deleted it."""


class KeyRows(Generic[S]):
    """The rows of one table. Every session changes a key's row one after the other, by the database's clock.

    :param column: the column of the document.
    :param kind: the document's class; one that cannot be read is begun anew.
    :param values: returns the columns after the key, the document's among them, from key, document and time.
    """

    def __init__(
        self, table: Table, column: str, kind: type[S], values: Callable[[Key, S, float], tuple[Any, ...]]
    ) -> None:
        self._table, self._kind, self._values = table, kind, values
        changed = ", ".join(f"[{each.name}] = ?" for each in list(table.columns)[2:])
        self._lock = f"UPDATE {{{table.name}}} SET [updated_at] = [updated_at] {WHERE}"  # noqa: S608
        self._select = f"SELECT [{column}] FROM {{{table.name}}} {WHERE}"  # noqa: S608
        self._update = f"UPDATE {{{table.name}}} SET {changed} {WHERE}"  # noqa: S608

    def change(self, warehouse: Warehouse, key: Key, change: Callable[[Any, S, float], T]) -> T:
        """Change a key's document in a transaction.

        :param change: called with the transaction's cursor, the document and the database's time; again after a
            conflict.
        :return: the result of ``change``.
        """
        while True:
            try:
                return warehouse.retry_on_conflict(lambda: self._change(warehouse, key, change))
            except _NoRow:
                warehouse.retry_on_conflict(lambda: self._create(warehouse, key))

    def _change(self, warehouse: Warehouse, key: Key, change: Callable[[Any, S, float], T]) -> T:
        with warehouse.transaction() as tx:
            warehouse.run(tx, self._lock, key[:2])
            # The statement before locks no row that another session adds at that moment, and this query sees it.
            stored = scalar(tx, warehouse.render(self._select + warehouse.dialect.row_lock), key[:2])
            if stored is None:
                raise _NoRow
            document, now = self._decode(stored), warehouse.epoch_time(tx)
            result = change(tx, document, now)
            warehouse.run(tx, self._update, (*self._values(key, document, now), *key[:2]))
            return result

    def _create(self, warehouse: Warehouse, key: Key) -> None:
        # In a transaction of its own: a row that another session adds meanwhile would not be locked.
        with warehouse.transaction() as tx:
            values = self._values(key, self._kind(), warehouse.epoch_time(tx))
            warehouse.insert(tx, self._table, [(*key[:2], *values)])

    def _decode(self, stored: str) -> S:
        try:
            return msgspec.json.decode(stored, type=self._kind)
        except msgspec.DecodeError:  # what it loses costs some refused calls, or some seconds without a holder
            return self._kind()
