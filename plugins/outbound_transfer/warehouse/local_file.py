"""The database without configuration: a SQLite file, where all of Airflow runs on one machine.

It has the table of deliveries where no connection is named for it. Airflow's own database tells: if it is the SQLite
file in AIRFLOW_HOME, every component opens that file, and so can open another one beside it. With any other database,
or an executor other than Airflow's default, components may run on several machines; each would then have a file of its
own.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from outbound_transfer.airflow_compat.names import conf, get_airflow_home

#: The file in AIRFLOW_HOME.
LOCAL_FILE: Final = "outbound_transfer.db"

_AIRFLOW_FILE: Final = "airflow.db"
_SINGLE_MACHINE_EXECUTOR: Final = "LocalExecutor"

#: What Airflow shows tasks and triggers instead of its database.
_HIDDEN_DATABASE: Final = "airflow-db-not-allowed:"


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
