"""Where the table of deliveries is: in the database of a connection, or, if Airflow runs on one machine, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from outbound_transfer.airflow_compat.lookups import with_parsed_extra
from outbound_transfer.store.config import (
    SqliteFileHook,
    deliveries_conn_id,
    find_connection,
    find_local_file,
    sql_hook,
    table_naming,
)
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.errors import NoDeliveriesTable


class DeliveriesPlace(NamedTuple):
    """The connection of the table of deliveries, or its file."""

    conn_id: str
    file: Path | None

    def __str__(self) -> str:
        return f"the file '{self.file}'" if self.file else f"connection '{self.conn_id}'"

    def open(self, **limits: Any) -> Deliveries:
        """Return the table, without connecting; see :class:`.Deliveries` for the limits."""
        names = table_naming()
        if self.file:
            return Deliveries(SqliteFileHook(self.file), prefix=names["prefix"], name=str(self), **limits)
        hook = sql_hook(with_parsed_extra(find_connection(self.conn_id)))  # any thread may use it
        return Deliveries(hook, **names, name=str(self), **limits)


def find_deliveries() -> DeliveriesPlace | None:
    """Return where the table of deliveries is; None if none is configured and Airflow may run on several machines."""
    conn_id = deliveries_conn_id()
    file = None if conn_id else find_local_file()
    return DeliveriesPlace(conn_id, file) if conn_id or file else None


def require_deliveries() -> DeliveriesPlace:
    """Return where the table of deliveries is; raise an error if it is nowhere."""
    if place := find_deliveries():
        return place
    raise NoDeliveriesTable(
        "A delivery needs a table that remembers what was sent, so nothing was created: set deliveries_conn_id in the "
        "section [outbound_transfer] of Airflow's configuration to the id of a connection of PostgreSQL, MySQL or "
        "SQLite (AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID)"
    )


def open_rows() -> Deliveries:
    """Return the table of deliveries of this Airflow, without connecting; an error if there is no place for it."""
    return require_deliveries().open()


def find_rows() -> Deliveries | None:
    """Return the table of deliveries of this Airflow, without connecting; None if there is none, or no file yet."""
    place = find_deliveries()
    return place.open() if place and (place.conn_id or (place.file and place.file.exists())) else None
