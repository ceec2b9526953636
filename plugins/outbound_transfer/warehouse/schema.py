"""The version of each group of tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Table

from outbound_transfer.warehouse.database import Warehouse, scalar
from outbound_transfer.warehouse.errors import SchemaTooNew
from outbound_transfer.warehouse.probe import probe
from outbound_transfer.warehouse.tables import (
    ACCOUNTS,
    EVENTS,
    FEED_CURSOR,
    FEED_POLLS,
    RECIPIENTS,
    REJECTED_LINES,
    SCHEMA_VERSION,
    TRANSFER_SYNC,
    TRANSFERS,
)
from outbound_transfer.warehouse.timestamps import format_timestamp


@dataclass(frozen=True)
class TableGroup:
    """Tables that are created together."""

    name: str
    version: int
    tables: tuple[Table, ...]


ACCOUNTS_GROUP: Final = TableGroup("accounts", 1, (ACCOUNTS,))
FEED: Final = TableGroup("feed", 1, (EVENTS, FEED_CURSOR, REJECTED_LINES, FEED_POLLS))
LISTING: Final = TableGroup("transfers", 1, (TRANSFERS, RECIPIENTS, TRANSFER_SYNC))

GROUPS: Final = (ACCOUNTS_GROUP, FEED, LISTING)


def ensure_schema(warehouse: Warehouse, group: TableGroup, now: datetime) -> None:
    """Create the tables of ``group``. Several sessions may do so at the same time.

    :raises SchemaTooNew: they were created by a newer version of this package.
    :raises UnsupportedWarehouse: the database cannot keep what the tables are for.
    """
    with warehouse.read() as tx:
        found = checked_version(warehouse, tx, group)
    if found != group.version:
        # Where there is no lock, sessions that create the tables at the same time get an error.
        warehouse.retry_on_conflict(lambda: _create(warehouse, group, now))


def is_current(warehouse: Warehouse, tx: Any, group: TableGroup) -> bool:
    """Return whether the tables have the current version."""
    return _version(warehouse, tx, group) == group.version


def read_versions(warehouse: Warehouse, groups: Iterable[TableGroup]) -> dict[str, int | None]:
    """Return the version of each group of tables; None if there are no tables yet. Changes nothing.

    :raises SchemaTooNew: they were created by a newer version of this package.
    """
    found: dict[str, int | None] = {}
    for group in groups:
        with warehouse.read() as tx:  # a failed query may end a transaction
            found[group.name] = checked_version(warehouse, tx, group)
    return found


def checked_version(warehouse: Warehouse, tx: Any, group: TableGroup) -> int | None:
    """Return the version of the tables; None if there are no tables yet.

    :raises SchemaTooNew: they were created by a newer version of this package.
    """
    found = _version(warehouse, tx, group)
    if found is not None and found > group.version:
        raise SchemaTooNew(
            f"the tables have version {found}, and this provider knows {group.version}: install the provider that made "
            "them, or a later one"
        )
    return found


def _version(warehouse: Warehouse, tx: Any, group: TableGroup) -> int | None:
    """Return the version of the tables; None if there are no tables yet."""
    if not warehouse.table_exists(tx, SCHEMA_VERSION):
        return None
    found = scalar(tx, warehouse.render("SELECT [version] FROM {schema_version} WHERE [component] = ?"), (group.name,))
    return None if found is None else int(found)


def _create(warehouse: Warehouse, group: TableGroup, now: datetime) -> None:
    if warehouse.dialect.needs_probe:
        probe(warehouse)
    warehouse.create_tables((SCHEMA_VERSION, *group.tables))
    with warehouse.transaction() as tx:
        warehouse.lock(tx)
        warehouse.insert(tx, SCHEMA_VERSION, [(group.name, group.version, format_timestamp(now))])
