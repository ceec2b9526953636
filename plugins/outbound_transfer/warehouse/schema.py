"""Which tables there are at which version, and the way from an older version to this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from outbound_transfer.warehouse.database import Warehouse, value
from outbound_transfer.warehouse.errors import NewerTables
from outbound_transfer.warehouse.migrations import FEED_STEPS, LEDGER_STEPS, LISTING_STEPS
from outbound_transfer.warehouse.rows import instant
from outbound_transfer.warehouse.tables import (
    CALLS,
    DELIVERIES,
    EVENTS,
    FEED_CURSOR,
    FEED_POLLS,
    LISTINGS,
    RECIPIENTS,
    REJECTED_LINES,
    SCHEMA,
    TRANSFERS,
    Table,
)


@dataclass(frozen=True)
class Part:
    """Tables that are made and upgraded together.

    :ivar steps: by version, what turns the version before into it; what only adds tables needs no step.
    """

    name: str
    version: int
    tables: tuple[Table, ...]
    steps: Mapping[int, Callable[[Warehouse, Any], None]]


#: 1: events, cursor and rejected lines, without a version. 2: ``raw``, PostgreSQL's ``jsonb``, the log of polls.
#: 3: an index of the log.
FEED: Final = Part("feed", 3, (EVENTS, FEED_CURSOR, REJECTED_LINES, FEED_POLLS), FEED_STEPS)
#: 1: transfers and recipients. 2: by whose key, and how far the listing was read.
LISTING: Final = Part("transfers", 2, (TRANSFERS, RECIPIENTS, LISTINGS), LISTING_STEPS)
#: 2: indexes.
LEDGER: Final = Part("deliveries", 2, (DELIVERIES, CALLS), LEDGER_STEPS)


def ensure(warehouse: Warehouse, part: Part, now: datetime) -> None:
    """Make the tables of ``part``, or upgrade them. Two sessions may do so at once.

    :raises NewerTables: they were made by a newer version of this package.
    """
    with warehouse.reading() as cursor:
        found = _version(warehouse, cursor, part)
    if found is not None and found > part.version:
        raise NewerTables(
            f"the tables have version {found}, and this provider knows {part.version}: install the provider that made "
            "them, or a later one"
        )
    if found != part.version:
        _upgrade(warehouse, part, now)


def is_current(warehouse: Warehouse, cursor: Any, part: Part) -> bool:
    """Whether the tables can be used as they are."""
    return _version(warehouse, cursor, part) == part.version


def _version(warehouse: Warehouse, cursor: Any, part: Part) -> int | None:
    """None where there is no version: no tables yet, or those of the first version."""
    if not warehouse.has(cursor, SCHEMA):
        return None
    found = value(cursor, warehouse.spelled("SELECT [version] FROM {schema} WHERE [part] = ?"), (part.name,))
    return None if found is None else int(found)


def _upgrade(warehouse: Warehouse, part: Part, now: datetime) -> None:
    warehouse.create((SCHEMA, *part.tables))
    with warehouse.writing() as cursor:
        warehouse.lock(cursor)
        # Whoever upgrades at the same time waits here for the row; the steps see for themselves whether they are due.
        warehouse.insert(cursor, SCHEMA, [(part.name, 1, instant(now))])
        for version in range((_version(warehouse, cursor, part) or 1) + 1, part.version + 1):
            if version in part.steps:
                part.steps[version](warehouse, cursor)
        warehouse.run(
            cursor,
            "UPDATE {schema} SET [version] = ?, [updated_at] = ? WHERE [part] = ?",
            (part.version, instant(now), part.name),
        )
