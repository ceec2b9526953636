"""Where tables are, and their names, by Airflow's configuration and connections. SQLAlchemy is not imported."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import BaseHook, conf, get_airflow_home
from outbound_transfer.store.errors import InvalidName, NotASqlConnection
from outbound_transfer.store.rows import storable_text

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.sdk import Connection

#: Start of the tables' names.
DEFAULT_PREFIX: Final = "outbound_transfer_"

#: Bytes of a name in the database that takes the longest ones, and those that a prefix leaves for a table's name.
MAX_NAME_LENGTH: Final = 1_000
MAX_TABLE_LENGTH: Final = len("rejected_lines")

#: The file in AIRFLOW_HOME.
LOCAL_FILE: Final = "outbound_transfer.db"

#: What Airflow shows tasks and triggers instead of its database.
_HIDDEN_DATABASE: Final = "airflow-db-not-allowed:"

#: When PostgreSQL's library gives up a silent server, instead of waiting for hours: seconds; the last, milliseconds.
_LIMITS: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


def check_prefix(prefix: Any, max_length: int = MAX_NAME_LENGTH) -> None:
    """Raise ``InvalidName`` if a database, whose names have ``max_length`` bytes, would change a prefix of tables."""
    _check_name("table_prefix", prefix, max_length - MAX_TABLE_LENGTH)


def check_schema(schema: Any, max_length: int = MAX_NAME_LENGTH) -> None:
    """Raise ``InvalidName`` if a database would change a schema's name; None and "" mean the connection's own."""
    _check_name("schema", "" if schema is None else schema, max_length)


def check_table(name: Any) -> None:
    """Raise ``InvalidName`` if the name of an Iceberg table has no namespace."""
    _check_name("table", name, MAX_NAME_LENGTH)
    if "." not in name or not all(name.split(".")):
        raise InvalidName(f"'{name}' is not the name of an Iceberg table: write namespace.table")


def _check_name(argument: str, name: Any, max_length: int) -> None:
    if not isinstance(name, str):
        raise InvalidName(f"{argument} must be a string, not {name!r:.100}")
    if storable_text(name) != name:
        raise InvalidName(f"the name {name!r} contains a NUL character or an unpaired surrogate")
    if len(name.encode()) > max_length:  # the database would shorten it silently, and two tables could become one
        raise InvalidName(f"the name {name!r} is too long: at most {max_length} bytes")


def _get_option(name: str, default: str = "") -> str:
    return str(conf.get("outbound_transfer", name, fallback=default))


def stores_recipients() -> bool:
    """Return whether names and addresses of recipients are stored and shown; an unknown mode stores none."""
    return _get_option("recipients", "names").strip().lower() == "names"


def table_naming() -> dict[str, Any]:
    """Return prefix and schema (None: the connection's own) of the tables that tasks and triggerers share."""
    prefix = _get_option("deliveries_table_prefix", DEFAULT_PREFIX)
    return {"prefix": prefix, "schema": _get_option("deliveries_schema") or None}


def deliveries_conn_id() -> str:
    """Return the connection of these tables; "" if none is configured."""
    return _get_option("deliveries_conn_id")


class SqliteFileHook:
    """Opens a SQLite file like Airflow's hook, but without its provider, which Airflow does not install."""

    conn_type = dialect_name = "sqlite"

    def __init__(self, file: Path) -> None:
        self._file = file

    def get_conn(self) -> Any:
        return sqlite3.connect(self._file)

    def get_uri(self) -> str:
        """Return the file's address in SQLAlchemy's form."""
        return f"sqlite:///{self._file}"


def find_local_file() -> Path | None:
    """Return the file for the table of deliveries, which may not exist yet; None if Airflow may run on many machines.

    Where Airflow's own database is the SQLite file in AIRFLOW_HOME, every component can open another one beside it.
    """
    airflow_file = Path(get_airflow_home()) / "airflow.db"
    database = conf.get("database", "sql_alchemy_conn", fallback=_HIDDEN_DATABASE)
    is_single_machine = (
        conf.get("core", "executor") == "LocalExecutor"
        and (database == f"sqlite:///{airflow_file}" or database.startswith(_HIDDEN_DATABASE))
        and airflow_file.is_file()
    )
    return airflow_file.with_name(LOCAL_FILE) if is_single_machine else None


def find_connection(conn_id: str) -> Connection:
    """Return a connection, with timeouts for a silent server in its extra."""
    connection: Connection = BaseHook.get_connection(conn_id)
    if connection.conn_type == "postgres":
        connection.extra = json.dumps({**_LIMITS, **connection.extra_dejson})
    return connection


def sql_hook(connection: Connection, hook_params: Mapping[str, Any] | None = None) -> DbApiHook:
    """Return the hook of a connection of :func:`find_connection`, which does not look it up again.

    :raises NotASqlConnection: the hook is not a ``DbApiHook``.
    """
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    hook, conn_id = connection.get_hook(hook_params=dict(hook_params or {})), connection.conn_id
    if not isinstance(hook, DbApiHook):
        raise NotASqlConnection(
            f"connection '{conn_id}' is not a SQL connection (its hook is not a DbApiHook). Use a connection "
            "to a SQL database"
        )
    hook.get_connection = lambda other: connection if other == conn_id else BaseHook.get_connection(other)
    return hook
