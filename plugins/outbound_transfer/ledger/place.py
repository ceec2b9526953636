"""Where the ledger is kept: Airflow's configuration, and the tables behind its connection."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow.sdk import conf

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from outbound_transfer.warehouse.deliveries import DeliveryTables

#: Seconds that the ledger's thread waits for the database in each step, before it gives a note up.
PATIENCE: Final = 10.0

log = logging.getLogger(__name__)

_SECTION: Final = "outbound_transfer"


@dataclass(frozen=True)
class Place:
    """The ledger's connection and the names of its tables, as of the ingestions."""

    conn_id: str
    prefix: str
    schema: str | None


def place() -> Place | None:
    """As configured; None where no ledger is kept, or its settings cannot be read: no delivery fails with them."""
    try:
        conn_id = conf.get(_SECTION, "ledger_conn_id", fallback="")
        if not conn_id:
            return None
        prefix = conf.get(_SECTION, "ledger_table_prefix", fallback="outbound_transfer_")
        return Place(conn_id, prefix, conf.get(_SECTION, "ledger_schema", fallback="") or None)
    except Exception as error:  # a lone % in airflow.cfg
        log.warning("No delivery ledger is kept: the section [%s] cannot be read: %s", _SECTION, error)
        return None


def tables_of(place: Place, connection: Connection) -> DeliveryTables:
    """The tables, behind a connection that was looked up before; meant for a thread, as it imports a provider.

    :raises UnsupportedWarehouse: the connection leads to no SQL database.
    """
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    from outbound_transfer.warehouse.database import Warehouse
    from outbound_transfer.warehouse.deliveries import DeliveryTables
    from outbound_transfer.warehouse.errors import UnsupportedWarehouse

    if connection.conn_type == "postgres":
        connection.extra = json.dumps({"connect_timeout": int(PATIENCE), **connection.extra_dejson})
    hook = connection.get_hook()
    if not isinstance(hook, DbApiHook):
        raise UnsupportedWarehouse(f"the connection {place.conn_id} leads to no SQL database")
    # The hook would look its connection up for each statement; and this one's extra was completed.
    hook.get_connection = lambda _: connection
    return DeliveryTables(Warehouse(hook, prefix=place.prefix, schema=place.schema, patience=PATIENCE))
