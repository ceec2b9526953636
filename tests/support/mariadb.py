"""A real MariaDB server for tests, of Debian's package; a test that needs it fails where it cannot be had."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.timeouts import TEST_TIMEOUT

#: Not in the PATH of every user.
SERVER = shutil.which("mariadbd") or "/usr/sbin/mariadbd"

#: Nothing here has to outlive a power cut, and a test needs little memory.
OPTIONS = (
    "--no-defaults",
    *(["--user=root"] if os.getuid() == 0 else []),
    "--bind-address=127.0.0.1",  # Airflow's hook takes mysql-connector-python there by no socket
    "--skip-name-resolve",
    "--skip-log-bin",
    "--performance-schema=off",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--sync-frm=0",
    # What a session must not take over: each test shows that it says what it needs.
    "--character-set-server=latin1",
    "--sql-mode=",
    "--default-storage-engine=MyISAM",
    "--transaction-isolation=REPEATABLE-READ",
    "--default-time-zone=+09:00",
)


@dataclass(frozen=True)
class Database:
    """A database of its own, gone at the end of the test."""

    socket: str
    port: int
    name: str

    def connect(self, driver: str = "mysqlclient", **options: Any) -> Any:
        """A new connection."""
        import MySQLdb

        return MySQLdb.connect(unix_socket=self.socket, user="root", db=self.name, **options)

    def connect_by_port(self, driver: str, port: int) -> Any:
        """A new connection of a driver through a proxy of loopback."""
        import MySQLdb

        return MySQLdb.connect(host="127.0.0.1", port=port, user="root", database=self.name)

    def airflow_connection(self, driver: str = "mysqlclient") -> str:
        """For an ``AIRFLOW_CONN_…`` variable."""
        address = {"host": "127.0.0.1", "port": self.port, "login": "root", "schema": self.name}
        return json.dumps({"conn_type": "mysql", **address})

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"mysql+mysqldb://root@localhost/{self.name}?unix_socket={self.socket}&charset=utf8mb4"


@contextmanager
def running_server() -> Iterator[Database]:
    """A server on a socket in a directory of its own; stopped and removed at the end."""
    try:
        import MySQLdb  # noqa: F401  # without it, each attempt to connect fails until the deadline
    except ImportError as error:
        raise RuntimeError("The tests on MariaDB need mysqlclient: run `make .mariadb`.") from error
    # Not pytest's temporary directory: a socket's path is short. In memory, as no disk is to be waited for.
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="mariadb-", dir=shared if shared.is_dir() else None))
    process = None
    try:
        data = f"--datadir={folder / 'data'}"
        _install(folder / "data", data)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = Database(str(folder / "socket"), port, "")
        with (folder / "log").open("wb") as log:
            places = (data, f"--socket={server.socket}", f"--port={port}", f"--pid-file={folder / 'pid'}")
            process = subprocess.Popen([SERVER, *OPTIONS, *places], stdout=log, stderr=log)
        _wait(process, server, folder / "log")
        with closing(server.connect()) as connection, closing(connection.cursor()) as tx:
            tx.execute("CREATE DATABASE main")
        yield replace(server, name="main")
    finally:
        if process is not None:
            process.kill()  # its files are not needed any more
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _install(folder: Path, data: str) -> None:
    """Make the system's tables: ``mariadb-install-db`` does the same, and needs programs of other packages."""
    (folder / "mysql").mkdir(parents=True)
    scripts = (Path("/usr/share/mysql") / name for name in ("mysql_system_tables.sql", "mysql_system_tables_data.sql"))
    statements = "USE mysql;\n" + "".join(script.read_text() for script in scripts)
    command = [SERVER, *OPTIONS, data, "--bootstrap", "--default-storage-engine=Aria"]
    done = subprocess.run(command, input=statements, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]


def _wait(process: subprocess.Popen[bytes], server: Database, log: Path) -> None:
    deadline = time.monotonic() + TEST_TIMEOUT
    while True:
        with suppress(Exception), closing(server.connect()):
            return
        assert process.poll() is None, log.read_text()[-2_000:]
        assert time.monotonic() < deadline, log.read_text()[-2_000:]
        time.sleep(0.02)
