"""Where tables are by Airflow's configuration: a connection and names, or a SQLite file where Airflow is one machine.

The file has the table of deliveries where no connection is named for it. Airflow's own database tells: if it is the
SQLite file in AIRFLOW_HOME, every component opens that file, and so can open another one beside it. With any other
database, or an executor other than Airflow's default, components may run on several machines; each would then have a
file of its own.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final, TypedDict

from outbound_transfer.airflow_compat.names import conf, get_airflow_home
from outbound_transfer.store.naming import DEFAULT_PREFIX

_SECTION: Final = "outbound_transfer"

#: The file in AIRFLOW_HOME.
LOCAL_FILE: Final = "outbound_transfer.db"

_AIRFLOW_FILE: Final = "airflow.db"
_SINGLE_MACHINE_EXECUTOR: Final = "LocalExecutor"

#: What Airflow shows tasks and triggers instead of its database.
_HIDDEN_DATABASE: Final = "airflow-db-not-allowed:"


class TableNaming(TypedDict):
    """The prefix and the schema of the configured tables; the connection's own schema if it is None."""

    prefix: str
    schema: str | None


def _get_option(name: str, default: str = "") -> str:
    return str(conf.get(_SECTION, name, fallback=default))


def stores_recipients() -> bool:
    """Return whether names and addresses of recipients are stored and shown; an unknown mode stores none."""
    return _get_option("recipients", "names").strip().lower() == "names"


def table_naming() -> TableNaming:
    """Return how the tables of deliveries, and of what triggerers share, are named."""
    return TableNaming(
        prefix=_get_option("deliveries_table_prefix", DEFAULT_PREFIX), schema=_get_option("deliveries_schema") or None
    )


def deliveries_conn_id() -> str:
    """Return the connection of the tables that tasks and triggerers share; "" if none is configured."""
    return _get_option("deliveries_conn_id")


class SqliteFileHook:
    """Opens a SQLite file, as a hook of Airflow's does; its provider, which Airflow does not bring, is not needed."""

    conn_type = dialect_name = "sqlite"

    def __init__(self, file: Path) -> None:
        self._file = file

    def get_conn(self) -> Any:
        return sqlite3.connect(self._file)

    def get_uri(self) -> str:
        """Return the file's address in SQLAlchemy's form."""
        return f"sqlite:///{self._file}"


def find_local_file() -> Path | None:
    """Return the file, which may not exist yet; None where Airflow may run on several machines."""
    home = Path(get_airflow_home())
    database = conf.get("database", "sql_alchemy_conn", fallback=_HIDDEN_DATABASE)
    is_single_machine = (
        conf.get("core", "executor") == _SINGLE_MACHINE_EXECUTOR
        and (database == f"sqlite:///{home / _AIRFLOW_FILE}" or database.startswith(_HIDDEN_DATABASE))
        and (home / _AIRFLOW_FILE).is_file()
    )
    return home / LOCAL_FILE if is_single_machine else None
