"""The section of Airflow's configuration that says where the ledger and the memory of deliveries are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from outbound_transfer.airflow_compat.names import conf
from outbound_transfer.protocol.personal_data import RecipientNaming
from outbound_transfer.warehouse.errors import NoMemoryTable
from outbound_transfer.warehouse.local_file import SqliteFileHook, find_local_file
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX

if TYPE_CHECKING:
    from outbound_transfer.warehouse.memory_table import MemoryTable

log = logging.getLogger(__name__)

_SECTION: Final = "outbound_transfer"


class TableNaming(TypedDict):
    """The prefix and the schema of the configured tables; the connection's own schema if it is None."""

    prefix: str
    schema: str | None


def get_option(name: str, default: str = "") -> str:
    """Return an option of the section, or the default if the section does not have it."""
    return str(conf.get(_SECTION, name, fallback=default))


def get_switch(name: str) -> bool:
    """Return an option of the section that is on unless the configuration says otherwise.

    :raises AirflowConfigException: its value is neither true nor false.
    """
    return bool(conf.getboolean(_SECTION, name, fallback=True))


def recipient_mode() -> str:
    """Return the mode of :func:`recipient_naming`, for which no key is needed."""
    return get_option("recipients", "names").strip().lower()


def recipient_naming() -> RecipientNaming:
    """Return how recipients are stored in ledger and warehouse: an unknown mode, or no key, stores none."""
    try:
        key = get_option("pseudonym_key")
    except Exception as error:  # of a command, or of any secrets backend
        log.warning("Recipients get no pseudonyms: pseudonym_key cannot be read: %s", type(error).__name__)
        key = ""
    return RecipientNaming(recipient_mode(), key)


def table_naming() -> TableNaming:
    """Return how the tables of the ledger, of memory and of triggerers are named."""
    return TableNaming(
        prefix=get_option("ledger_table_prefix", DEFAULT_PREFIX), schema=get_option("ledger_schema") or None
    )


def state_conn_id() -> str:
    """Return the connection of the tables that tasks and triggerers share; "" if none is configured."""
    return get_option("state_conn_id") or get_option("ledger_conn_id")


class MemoryPlace(NamedTuple):
    """The database of the table of memory.

    :ivar conn_id: "" if it is ``file``.
    :ivar file: the file of :mod:`.local_file`; None if there is a connection.
    """

    conn_id: str = ""
    file: Path | None = None

    def __str__(self) -> str:
        return f"the file '{self.file}'" if self.file else f"connection '{self.conn_id}'"

    def open(self) -> MemoryTable:
        """Return the table, without connecting.

        :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
        """
        # These import SQLAlchemy, which a DAG file that only names an operator does not need.
        from outbound_transfer.warehouse.connection import open_warehouse
        from outbound_transfer.warehouse.database import Warehouse
        from outbound_transfer.warehouse.memory_table import MemoryTable

        names = table_naming()
        if self.file:
            warehouse = Warehouse(SqliteFileHook(self.file), prefix=names["prefix"])
        else:
            warehouse = open_warehouse(self.conn_id, **names)
        return MemoryTable(warehouse, str(self))


def find_memory_place() -> MemoryPlace | None:
    """Return where the table of memory is: the connection, or the local file; None if there is neither."""
    if conn_id := state_conn_id():
        return MemoryPlace(conn_id)
    file = find_local_file()
    return MemoryPlace(file=file) if file else None


def require_memory_place(needed_by: str) -> MemoryPlace:
    """Return where the table of memory is.

    :param needed_by: names what needs it, for the error.
    :raises NoMemoryTable: nothing is configured, and Airflow may run on several machines.
    """
    if place := find_memory_place():
        return place
    raise NoMemoryTable(
        f"{needed_by} needs a table that remembers what was sent, so nothing was created: set state_conn_id in the "
        "section [outbound_transfer] of Airflow's configuration to the id of a SQL connection"
    )
