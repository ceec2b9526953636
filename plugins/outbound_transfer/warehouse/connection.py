"""The warehouse behind an Airflow connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.dialects.refused import check_names
from outbound_transfer.warehouse.errors import NotASqlConnection

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.sdk import Connection


def require_sql_hook(hook: Any, conn_id: str) -> DbApiHook:
    """Return the hook of a connection if it is one of a SQL database.

    :raises NotASqlConnection: it is not a ``DbApiHook``.
    :raises UnsupportedWarehouse: its database is known not to work.
    """
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    if not isinstance(hook, DbApiHook):
        check_names([getattr(hook, "conn_type", None)])
        raise NotASqlConnection(
            f"connection '{conn_id}' is not a SQL connection (its hook is not a DbApiHook). Name the connection "
            "of a SQL database"
        )
    return hook


def open_warehouse(
    sql_conn_id: str,
    *,
    prefix: str,
    schema: str | None,
    timeout: float | None = None,
    connection: Connection | None = None,
) -> Warehouse:
    """Return the warehouse of a connection, without connecting.

    :param timeout: seconds to wait for other sessions' locks, and for the database.
    :param connection: the connection, if it was looked up before; it is not looked up again.
    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    :raises UnsupportedWarehouse: its database is known not to work.
    """
    hook = require_sql_hook(connection.get_hook() if connection else BaseHook.get_hook(sql_conn_id), sql_conn_id)
    if connection:  # the hook would look it up for each statement
        hook.get_connection = lambda _: connection
    return Warehouse(hook, prefix=prefix, schema=schema, timeout=timeout)
