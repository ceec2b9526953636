"""Each extra of the wheel, installed alone, does what it is for: with the servers that it needs beside it."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support import azurite, mariadb, object_storage, postgres, sftp_server
from support.mail_server import MailServer
from support.threads import serving

#: A port at which nobody listens.
_NOBODY = "http://127.0.0.1:9"


def extras_of(wheel: Path) -> list[str]:
    """The extras of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return re.findall(r"^Provides-Extra: (\S+)", archive.read(metadata).decode(), re.MULTILINE)


@contextmanager
def surroundings(extra: str, folder: Path) -> Iterator[dict[str, str]]:
    """The service, the server that the extra speaks to, and the connections to both as variables."""
    with running_sandbox() as sandbox:
        sandbox.patch_account(feed_interval_seconds=0)
        variables = {"AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": sandbox.airflow_connection()}
        with _server(extra, folder) as more:
            yield variables | more
        _check(extra, sandbox)


def _check(extra: str, sandbox: Sandbox) -> None:
    sent = {"sqlite": 2, "postgres": 2, "duckdb": 2, "mysql": 2, "parquet": 0, "xlsx": 0, "gcs": 0, "sandbox": 0}
    assert len(sandbox.sent()) == sent.get(extra, 1), f"{extra}: {sandbox.sent()}"


@contextmanager
def _server(extra: str, folder: Path) -> Iterator[dict[str, str]]:
    if extra in ("sqlite", "duckdb"):
        yield {"AIRFLOW_CONN_WAREHOUSE": json.dumps({"conn_type": extra, "host": str(folder / f"{extra}.db")})}
    elif extra == "postgres":
        with postgres.running_server() as server:
            yield {"AIRFLOW_CONN_WAREHOUSE": server.airflow_connection}
    elif extra == "mysql":
        with mariadb.running_server() as database:
            yield {"AIRFLOW_CONN_WAREHOUSE": database.airflow_connection()}
    elif extra == "iceberg":
        place = {"uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder / 'lake'}"}
        yield {"AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "iceberg", "extra": {"type": "sql", **place}})}
    elif extra in ("s3", "gcs", "azure", "sftp"):
        with _store(extra, folder) as variables:
            yield variables
    elif extra == "slack":
        with _webhook() as address:
            yield {"AIRFLOW_CONN_SLACK_DEFAULT": json.dumps({"conn_type": "slackwebhook", "password": address})}
    elif extra == "smtp":
        mail = MailServer()
        options = {"disable_ssl": True, "disable_tls": True}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": mail.port, "extra": options}
        with mail.served():
            yield {"AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(connection)}
        assert len(mail.messages) == 1, mail.messages
    else:
        yield {}


@contextmanager
def _store(extra: str, folder: Path) -> Iterator[dict[str, str]]:
    """A store with one file, and the connection to it."""
    if extra == "s3":
        with object_storage.running_s3() as address:
            object_storage.Bucket(address, "extras").put("report.csv", b"a,b")
            yield {"AIRFLOW_CONN_AWS_DEFAULT": object_storage.connection_json(address)}
    elif extra == "gcs":
        connection = {"conn_type": "google_cloud_platform", "extra": {"project": "none", "is_anonymous": True}}
        given = {"AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(connection)}
        yield given | {"STORAGE_EMULATOR_HOST": _NOBODY}
    elif extra == "azure":
        with azurite.running_azurite(folder) as address:
            azurite.Container(address, "extras").put("report.csv", b"a,b")
            graph = {"conn_type": "msgraph", "host": "tenant", "login": "client", "password": "secret"}
            yield {
                "AIRFLOW_CONN_WASB_DEFAULT": azurite.connection_json(address),
                "AIRFLOW_CONN_MSGRAPH_DEFAULT": json.dumps(graph),
            }
    else:
        with sftp_server.running_sftp() as server:
            server.put("upload/report.csv", b"a,b")
            yield {"AIRFLOW_CONN_SFTP_DEFAULT": server.connection_json()}


@contextmanager
def _webhook() -> Iterator[str]:
    calls: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}/services/T/B/token"
    assert len(calls) == 1, calls
