"""A real Airflow for its user interface: two API servers over one database, one of them below a path of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))

from demo.console import Teller  # noqa: E402
from demo.processes import Processes  # noqa: E402
from demo.stack import Airflow, Stack, _addresses, _airflow, free_ports  # noqa: E402

from kills.stack import NoSignals  # noqa: E402

PASSWORD = "correct horse"
LEDGER = "ledger"


class UiStack(Stack):
    """API servers that ask for a sign-in, a DAG folder read once, and a ledger; nothing that would run a task."""

    def __init__(self, folder: Path, processes: Processes, teller: Teller, ledger: str, dags: Path) -> None:
        super().__init__(folder, processes, teller)
        self._ledger, self._dags = ledger, dags

    def start(self, *paths: str) -> None:
        """Start; one API server for each path."""
        self.begin_migration()
        (self.folder / "passwords.json").write_text(json.dumps({"ann": PASSWORD, "vera": PASSWORD}))
        for _ in self._rounds("airflow db migrate"):
            if self._processes.ended("db-migrate"):
                break
        self._env |= self.connections()
        self._processes.start("reserialize", _airflow("dags", "reserialize"), self._env, ends=True)
        self.servers = {path: self._start_server(path) for path in paths}
        for server in self.servers.values():
            for _ in self._rounds("Airflow to start"):
                if server.health():
                    break
        for _ in self._rounds("the DAGs"):
            if self._processes.ended("reserialize"):
                break

    def _start_server(self, path: str) -> Airflow:
        port, *closed = free_ports(3)
        addresses = _addresses(port, *closed)
        url = addresses["AIRFLOW__API__BASE_URL"] + path
        name = f"api-server{path.replace('/', '-')}"
        self._processes.start(name, _airflow("api-server"), self._env | addresses | {"AIRFLOW__API__BASE_URL": url})
        server = Airflow(url)
        self._open.callback(server.close)
        return server

    def sign_in(self, path: str, user: str) -> str:
        """A token of the user, which the client of that server then sends."""
        server = self.servers[path]
        answer = httpx.post(f"{server.url}/auth/token", json={"username": user, "password": PASSWORD}, trust_env=False)
        token: str = answer.raise_for_status().json()["access_token"]
        server._http.headers["Authorization"] = f"Bearer {token}"
        return token

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin,vera:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.folder / "passwords.json"),
            "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID": LEDGER,
        }

    def connections(self) -> dict[str, str]:
        return {f"AIRFLOW_CONN_{LEDGER.upper()}": self._ledger}


@contextmanager
def running_ui(folder: Path, ledger: str, dags: Path, *paths: str) -> Iterator[UiStack]:
    """A started stack; ``ledger`` is its warehouse, as for an ``AIRFLOW_CONN_…`` variable."""
    signals: Any = NoSignals()
    Stack.wipe(folder)
    processes = Processes(folder, signals)
    try:
        with closing(UiStack(folder, processes, Teller(), ledger, dags)) as stack:
            stack.start(*paths)
            yield stack
    finally:
        if left := processes.stop():
            raise RuntimeError(f"Could not stop {', '.join(left)}")
