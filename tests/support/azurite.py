"""Azurite, an Azure Blob Storage of its own, and Airflow's connection to it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support.repository import REPOSITORY

#: What `make .azurite` installs.
PROGRAM = REPOSITORY / ".venv/azurite/node_modules/azurite/dist/src/blob/main.js"
#: The account that every Azurite has.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def running_azurite(folder: Path) -> Iterator[str]:
    """The address of the account of an empty server, which writes to ``folder`` and forgets all when it stops."""
    options = ("--inMemoryPersistence", "--blobPort", "0", "--silent", "--disableTelemetry", "--skipApiVersionCheck")
    with subprocess.Popen(["node", PROGRAM, *options], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = (re.search(r"successfully listens on (\S+)", line) for line in server.stdout)
            address = next((match[1] for match in found if match), None)
            assert address, "Azurite did not start"
            yield f"{address}/{ACCOUNT}"
        finally:
            server.terminate()
            server.stdout.read()  # it fails if nobody reads that it closes


def connection_json(address: str, secret: str = f"AccountKey={KEY}") -> str:
    return json.dumps({"conn_type": "wasb", "extra": {"connection_string": connection_string(address, secret)}})


def connection_string(address: str, secret: str = f"AccountKey={KEY}") -> str:
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};BlobEndpoint={address};{secret}"


@dataclass(frozen=True)
class Container:
    address: str
    name: str

    def __post_init__(self) -> None:
        with self._client() as client:
            client.create_container()

    def _client(self) -> Any:
        from azure.storage.blob import ContainerClient

        return ContainerClient.from_connection_string(connection_string(self.address), self.name)

    @property
    def uri(self) -> str:
        return f"abfs://wasb_default@{self.name}"

    def put(self, key: str, content: bytes) -> str:
        with self._client() as client:
            client.upload_blob(key, content, overwrite=True)
        return f"{self.uri}/{key}"

    def delete(self, key: str) -> None:
        with self._client() as client:
            client.delete_blob(key)

    def sas_token(self, permissions: str) -> str:
        from azure.storage.blob import generate_container_sas

        until = datetime.now(UTC) + timedelta(days=1)
        return generate_container_sas(ACCOUNT, self.name, KEY, permission=permissions, expiry=until)
