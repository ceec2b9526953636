"""The ledger's configuration in Airflow, and its tables."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outbound_transfer.airflow_compat.connections import with_parsed_extra
from outbound_transfer.protocol.personal_data import AS_THEY_ARE, RecipientNaming
from outbound_transfer.warehouse.config import get_option, get_switch, recipient_naming, table_naming
from outbound_transfer.warehouse.connection import find_connection, open_warehouse
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.deliveries import DeliveryTables
from outbound_transfer.warehouse.local_file import SqliteFileHook, find_local_file

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: Seconds that the ledger's thread waits for the database before it drops an update.
DB_TIMEOUT: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerConfig:
    """The ledger's connection, and the prefix and schema of its tables.

    :ivar conn_id: "" if the ledger is ``file``.
    :ivar file: the file of :mod:`~outbound_transfer.warehouse.local_file`; None if the ledger has a connection.
    :ivar recipients: how the recipients of each delivery are recorded, and shown.
    """

    conn_id: str
    prefix: str
    schema: str | None
    file: Path | None = None
    recipients: RecipientNaming = AS_THEY_ARE


def read_config() -> LedgerConfig | None:
    """Return the configuration; None if there is no ledger.

    Raises whatever Airflow does if the settings cannot be read.
    """
    naming, recipients = table_naming(), recipient_naming()
    if conn_id := get_option("ledger_conn_id"):
        return LedgerConfig(conn_id, **naming, recipients=recipients)
    file = find_local_file() if get_switch("default_ledger") else None
    return LedgerConfig("", naming["prefix"], None, file, recipients) if file else None


def load_config() -> LedgerConfig | None:
    """Return the configuration as :func:`read_config` does; None if its settings cannot be read. Never raises."""
    try:
        return read_config()
    except Exception as error:  # a lone % in airflow.cfg
        log.warning("The delivery ledger is disabled: [outbound_transfer] of the configuration is invalid: %s", error)
        return None


def is_ledger_missing() -> bool:
    """Return whether no ledger is configured, and nobody said that there is to be none. Never raises."""
    with suppress(Exception):  # load_config() logs what is wrong
        return not get_option("ledger_conn_id") and get_switch("default_ledger") and find_local_file() is None
    return False


def find_ledger_connection(config: LedgerConfig) -> Connection | None:
    """Return the ledger's connection, for another thread to use; None if the ledger is a file."""
    return with_parsed_extra(find_connection(config.conn_id)) if config.file is None else None


def open_ledger(config: LedgerConfig, timeout: float | None, connection: Connection | None = None) -> Warehouse:
    """Return the ledger's database, without connecting.

    :param timeout: see :func:`.open_warehouse`.
    :param connection: its connection, if it was looked up before.
    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    """
    if config.file:
        return Warehouse(SqliteFileHook(config.file), prefix=config.prefix, timeout=timeout)
    return open_warehouse(
        config.conn_id, prefix=config.prefix, schema=config.schema, timeout=timeout, connection=connection
    )


def open_tables(config: LedgerConfig, connection: Connection | None) -> DeliveryTables:
    """Return the ledger's tables. Call it in a thread: it imports the provider of the connection.

    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    """
    return DeliveryTables(open_ledger(config, DB_TIMEOUT, connection))
