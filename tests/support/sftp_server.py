"""An SFTP server of its own, and Airflow's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import asyncssh

USER, PASSWORD = "sender", "a-secret-password"

#: Where relative paths begin, on the server.
HOME = "home"

_NOBODY = 65534


@dataclass(frozen=True)
class SftpServer:
    """A server, the folder that it serves as its root, and a private key that logs in."""

    port: int
    root: Path
    client_key: bytes
    uri: ClassVar = "sftp://sftp_default@"

    def put(self, path: str, content: bytes) -> str:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not file.exists()
        file.write_bytes(content)
        if is_new:
            os.utime(file, (1, 1))  # SFTP tells times in seconds: a change is to be seen
        return f"{self.uri}/{path}"

    def delete(self, path: str) -> None:
        (self.root / path).unlink()

    def connection_json(self, **changed: object) -> str:
        values = {"conn_type": "sftp", "host": "127.0.0.1", "port": self.port, "login": USER, "password": PASSWORD}
        return json.dumps({name: value for name, value in (values | changed).items() if value is not None})


@contextlib.contextmanager
def running_sftp() -> Iterator[SftpServer]:
    """An empty server, in a process of its own: its memory is not taken for ours, and permissions hold for it."""
    from support.object_storage import started  # not at the top: the server runs this file alone

    root = Path(tempfile.mkdtemp(prefix="sftp-"))  # not below a folder that only its owner may enter
    root.chmod(0o755)
    (root / HOME).mkdir()
    key = asyncssh.generate_private_key("ssh-ed25519")
    try:
        with started(sys.executable, __file__, str(root), key.export_public_key().decode().strip()) as port:
            yield SftpServer(int(port), root, key.export_private_key())
    finally:
        shutil.rmtree(root)


class _Login(asyncssh.SSHServer):
    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, PASSWORD)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == USER and key == asyncssh.import_public_key(sys.argv[2])


class _Files(asyncssh.SFTPServer):
    def __init__(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
        super().__init__(channel, chroot=sys.argv[1].encode())

    def map_path(self, path: bytes) -> bytes:
        return super().map_path(os.path.join(f"/{HOME}".encode(), path))


async def _serve() -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key], server_factory=_Login, sftp_factory=_Files)
    if os.geteuid() == 0:
        os.setuid(_NOBODY)
    print(server.get_port(), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the parent ends, however it ends
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
