"""The section of Airflow's configuration that says where the table of deliveries is."""

from __future__ import annotations

from typing import Final, TypedDict

from outbound_transfer.airflow_compat.names import conf
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX

_SECTION: Final = "outbound_transfer"


class TableNaming(TypedDict):
    """The prefix and the schema of the configured tables; the connection's own schema if it is None."""

    prefix: str
    schema: str | None


def get_option(name: str, default: str = "") -> str:
    """Return an option of the section, or the default if the section does not have it."""
    return str(conf.get(_SECTION, name, fallback=default))


def stores_recipients() -> bool:
    """Return whether names and addresses of recipients are stored and shown; an unknown mode stores none."""
    return get_option("recipients", "names").strip().lower() == "names"


def table_naming() -> TableNaming:
    """Return how the tables of deliveries, and of what triggerers share, are named."""
    return TableNaming(
        prefix=get_option("deliveries_table_prefix", DEFAULT_PREFIX), schema=get_option("deliveries_schema") or None
    )


def deliveries_conn_id() -> str:
    """Return the connection of the tables that tasks and triggerers share; "" if none is configured."""
    return get_option("deliveries_conn_id")
