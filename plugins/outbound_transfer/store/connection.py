"""The SQL database behind an Airflow connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.store.errors import NotASqlConnection
from outbound_transfer.store.schema import Tables

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.sdk import Connection


#: What PostgreSQL's library does about a server that is silent: in seconds, and the last in milliseconds. It would
#: wait for hours, or without end.
_LIMITS: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


def find_connection(conn_id: str) -> Connection:
    """Return a connection, whose extra has limits for a server that is silent."""
    connection: Connection = BaseHook.get_connection(conn_id)
    if connection.conn_type == "postgres":
        connection.extra = json.dumps({**_LIMITS, **connection.extra_dejson})
    return connection


def sql_hook(connection: Connection, hook_params: Mapping[str, Any] | None = None) -> DbApiHook:
    """Return the hook of a connection of a SQL database, which does not look it up again.

    :param connection: of :func:`find_connection`.
    :raises NotASqlConnection: the hook is not a ``DbApiHook``.
    """
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    hook, conn_id = connection.get_hook(hook_params=dict(hook_params or {})), connection.conn_id
    if not isinstance(hook, DbApiHook):
        raise NotASqlConnection(
            f"connection '{conn_id}' is not a SQL connection (its hook is not a DbApiHook). Name the connection "
            "of a SQL database"
        )
    hook.get_connection = lambda other: connection if other == conn_id else BaseHook.get_connection(other)
    return hook


def open_tables(sql_conn_id: str, *, prefix: str, schema: str | None) -> Tables:
    """Return the tables in the database of a connection, without connecting.

    :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
    :raises UnsupportedDatabase: events and transfers are not stored in its database.
    """
    return Tables(sql_hook(find_connection(sql_conn_id)), prefix=prefix, schema=schema)
