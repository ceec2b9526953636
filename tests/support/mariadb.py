"""A real MariaDB server for tests, of Debian's package; a test that needs it fails where it cannot be had."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.timeouts import eventually

#: Not in the PATH of every user.
SERVER = shutil.which("mariadbd") or "/usr/sbin/mariadbd"

#: Nothing here has to outlive a power cut, and a test needs little memory.
OPTIONS = (
    "--no-defaults", *(["--user=root"] if os.getuid() == 0 else []),
    "--bind-address=127.0.0.1",  # Airflow's hook takes mysql-connector-python there by no socket
    "--skip-name-resolve", "--skip-log-bin", "--performance-schema=off", "--sync-frm=0",
    "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-doublewrite=0",
    "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M",
    # What a session must not take over: each test shows that it says what it needs.
    "--character-set-server=latin1", "--sql-mode=", "--default-storage-engine=MyISAM",
    "--transaction-isolation=REPEATABLE-READ", "--default-time-zone=+09:00",
)  # fmt: skip


@dataclass(frozen=True)
class Database:
    socket: str
    port: int
    name: str

    def connect(self, driver: str = "mysqlclient", **options: Any) -> Any:
        import MySQLdb

        return MySQLdb.connect(unix_socket=self.socket, user="root", db=self.name, **options)

    def airflow_connection(self, driver: str = "mysqlclient") -> str:
        address = {"host": "127.0.0.1", "port": self.port, "login": "root", "schema": self.name}
        return json.dumps({"conn_type": "mysql", **address})

    @property
    def url(self) -> str:
        return f"mysql+mysqldb://root@localhost/{self.name}?unix_socket={self.socket}&charset=utf8mb4"


@contextmanager
def running_server() -> Iterator[Database]:
    try:
        import MySQLdb  # noqa: F401  # without it, each attempt to connect fails until the deadline
    except ImportError as error:
        raise RuntimeError("The tests on MariaDB need mysqlclient: run `make .mariadb`.") from error
    # Not pytest's temporary directory: a socket's path is short. In memory, as no disk is to be waited for.
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="mariadb-", dir=shared if shared.is_dir() else None))
    process = None
    try:
        # A server that starts removes the temporary tables of all that have its temporary folder.
        folders = f"--datadir={folder / 'data'}", f"--tmpdir={folder}"
        _install(folder / "data", folders)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = Database(str(folder / "socket"), port, "")
        with (folder / "log").open("wb") as log:
            places = f"--socket={server.socket}", f"--port={port}", f"--pid-file={folder}/pid"
            process = subprocess.Popen([SERVER, *OPTIONS, *folders, *places], stdout=log, stderr=log)
        eventually(lambda: _is_up(process, server, folder / "log"), interval=0.02)
        with closing(server.connect()) as connection, closing(connection.cursor()) as tx:
            tx.execute("CREATE DATABASE main")
        yield replace(server, name="main")
    finally:
        if process is not None:
            process.kill()  # its files are not needed any more
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _install(folder: Path, folders: Sequence[str]) -> None:
    """Make the system's tables: ``mariadb-install-db`` does the same, and needs programs of other packages."""
    (folder / "mysql").mkdir(parents=True)
    scripts = (Path("/usr/share/mysql") / name for name in ("mysql_system_tables.sql", "mysql_system_tables_data.sql"))
    statements = "USE mysql;\n" + "".join(script.read_text() for script in scripts)
    command = [SERVER, *OPTIONS, *folders, "--bootstrap", "--default-storage-engine=Aria"]
    done = subprocess.run(command, input=statements, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]


def _is_up(process: subprocess.Popen[bytes], server: Database, log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-2_000:]
    with suppress(Exception), closing(server.connect()):
        return True
    return False
