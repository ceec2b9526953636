"""How each database spells the tables: one module each for those that are known, and portable SQL for any other."""

from __future__ import annotations

from typing import Final

from outbound_transfer.warehouse.dialects.base import Dialect, Hook, Row
from outbound_transfer.warehouse.dialects.duckdb import DUCKDB
from outbound_transfer.warehouse.dialects.portable import portable
from outbound_transfer.warehouse.dialects.postgresql import POSTGRESQL
from outbound_transfer.warehouse.dialects.sqlite import SQLITE

__all__ = ["DIALECTS", "Dialect", "Hook", "Row", "dialect_of"]

DIALECTS: Final = {dialect.name: dialect for dialect in (DUCKDB, POSTGRESQL, SQLITE)}


def dialect_of(hook: Hook) -> Dialect:
    """The dialect of a hook: its database's own, or portable SQL in the spelling that SQLAlchemy knows of it."""
    return DIALECTS.get(hook.dialect_name) or portable(hook.dialect_name, hook.placeholder)
