"""The ledger's configuration in Airflow, and its tables."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from outbound_transfer.airflow_compat.connections import with_parsed_extra
from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.warehouse.config import get_option, table_naming
from outbound_transfer.warehouse.connection import open_warehouse
from outbound_transfer.warehouse.deliveries import DeliveryTables

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: Seconds that the ledger's thread waits for the database before it drops an update.
DB_TIMEOUT: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerConfig:
    """The ledger's connection, and the prefix and schema of its tables."""

    conn_id: str
    prefix: str
    schema: str | None


def load_config() -> LedgerConfig | None:
    """Return the configuration; None if there is no ledger, or if its settings cannot be read. Never raises."""
    try:
        conn_id = get_option("ledger_conn_id")
        return LedgerConfig(conn_id, **table_naming()) if conn_id else None
    except Exception as error:  # a lone % in airflow.cfg
        log.warning("The delivery ledger is disabled: [outbound_transfer] of the configuration is invalid: %s", error)
        return None


def find_connection(config: LedgerConfig) -> Connection:
    """Return the ledger's connection, for another thread to use: a lookup uses the one socket to Airflow, like the
    task's own requests.
    """
    connection: Connection = BaseHook.get_connection(config.conn_id)
    if connection.conn_type == "postgres":
        connection.extra = json.dumps({"connect_timeout": int(DB_TIMEOUT), **connection.extra_dejson})
    return with_parsed_extra(connection)


def open_tables(config: LedgerConfig, connection: Connection) -> DeliveryTables:
    """Return the ledger's tables. Call it in a thread: it imports the provider of the connection.

    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    """
    warehouse = open_warehouse(
        config.conn_id, prefix=config.prefix, schema=config.schema, timeout=DB_TIMEOUT, connection=connection
    )
    return DeliveryTables(warehouse)
