"""The section of Airflow's configuration that says where the ledger and the state of deliveries are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from outbound_transfer.airflow_compat.names import conf
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from outbound_transfer.warehouse.database import Warehouse

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


def table_naming() -> TableNaming:
    """Return how the tables of the ledger and of the states are named."""
    return TableNaming(
        prefix=get_option("ledger_table_prefix", DEFAULT_PREFIX), schema=get_option("ledger_schema") or None
    )


def state_conn_id() -> str:
    """Return the connection of the table of states if Airflow keeps no state itself; "" if there is none."""
    return get_option("state_conn_id") or get_option("ledger_conn_id")


def open_states(conn_id: str, connection: Connection | None = None) -> Warehouse:
    """Return the warehouse that has the table of states.

    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    """
    # Imports SQLAlchemy, which a DAG file that only names an operator does not need.
    from outbound_transfer.warehouse.connection import open_warehouse

    return open_warehouse(conn_id, **table_naming(), connection=connection)
