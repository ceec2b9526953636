"""A probe of a database that is not known by name, before the first tables are made in it.

Rows and cursor are only safe where a transaction is rolled back as a whole, a key is enforced, and text comes back as
it was written. A database that is silent about one of these loses events without an error.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Table

from outbound_transfer.warehouse.database import Warehouse, fetch_all
from outbound_transfer.warehouse.dialects.refused import AUTOCOMMIT, NO_KEYS, WAY_OUT
from outbound_transfer.warehouse.errors import UnsupportedWarehouse
from outbound_transfer.warehouse.tables import probe_table

#: Keys that only a case-blind, accent-blind or padding collation takes for one another, and characters of four bytes.
_KEYS: Final = ("a", "A", "a ", "á", "🎉", "🚀", "日本")

#: What a database with short text columns cuts off, and one with escapes in its literals changes.
_LONG_TEXT: Final = r"\'\\n%s {é🎉}" * 10_000


def probe(warehouse: Warehouse) -> None:
    """Check with a table of its own, which is dropped again, that a database keeps what it is given.

    :raises UnsupportedWarehouse: it does not.
    """
    table = probe_table(f"probe_{uuid.uuid4().hex[:8]}")
    warehouse.create_tables([table])
    try:
        if flaw := next(filter(None, (check(warehouse, table) for check in _CHECKS)), None):
            raise UnsupportedWarehouse(f"The database ({warehouse.dialect.name}) {flaw}. {WAY_OUT}")
    finally:
        with suppress(Exception), warehouse.transaction() as tx:  # what the probe found matters more
            warehouse.run(tx, "DROP TABLE {probe}", probe=table)


def _find_failed_rollback(warehouse: Warehouse, table: Table) -> str | None:
    with warehouse.trial() as tx:
        _insert(warehouse, tx, table, "a", "")
    return f"keeps rows of a transaction that is rolled back: {AUTOCOMMIT}" if _rows(warehouse, table) else None


def _find_lost_commit(warehouse: Warehouse, table: Table) -> str | None:
    with warehouse.transaction() as tx:
        _insert(warehouse, tx, table, "a", "")
    return None if _rows(warehouse, table) == {"a": ""} else "does not return a row as it was committed"


def _find_unknown_rowcount(warehouse: Warehouse, table: Table) -> str | None:
    counts = []
    with warehouse.transaction() as tx:
        for name in ("a", "b"):
            warehouse.run(tx, "UPDATE {probe} SET [value] = ? WHERE [name] = ?", ("1", name), probe=table)
            counts.append(warehouse.dialect.rowcount(tx))
    if counts == [1, 0]:
        return None
    return "does not tell how many rows a statement changed, so readers could not know whether the cursor moved"


def _find_duplicate_key(warehouse: Warehouse, table: Table) -> str | None:
    with suppress(Exception), warehouse.transaction() as tx:  # each driver has an error of its own
        _insert(warehouse, tx, table, "a", "")
    with warehouse.read() as tx:
        rows = len(fetch_all(warehouse.run(tx, "SELECT [name] FROM {probe}", probe=table)))
    return None if rows == 1 else f"accepts two rows of one key: {NO_KEYS}"


def _find_changed_text(warehouse: Warehouse, table: Table) -> str | None:
    wanted = {**{name: name for name in _KEYS}, "null": None, "empty": "", "long": _LONG_TEXT}
    try:
        with warehouse.transaction() as tx:
            warehouse.run(tx, "DELETE FROM {probe} WHERE [name] = ?", ("a",), probe=table)
            for name, value in wanted.items():
                _insert(warehouse, tx, table, name, value)
    except Exception as error:
        return f"rejects names that differ by case, accent or trailing space, or has no room for them ({error})"
    if _rows(warehouse, table) == wanted:
        return None
    return "changes text: it needs Unicode columns, and a collation that distinguishes case, accent and trailing space"


_CHECKS: Final[tuple[Callable[[Warehouse, Table], str | None], ...]] = (
    _find_failed_rollback,
    _find_lost_commit,
    _find_unknown_rowcount,
    _find_duplicate_key,
    _find_changed_text,
)


def _insert(warehouse: Warehouse, tx: Any, table: Table, name: str, value: str | None) -> None:
    warehouse.run(tx, "INSERT INTO {probe} ([name], [value]) VALUES (?, ?)", (name, value), probe=table)


def _rows(warehouse: Warehouse, table: Table) -> dict[str, str | None]:
    with warehouse.read() as tx:
        return dict(fetch_all(warehouse.run(tx, "SELECT [name], [value] FROM {probe}", probe=table)))
