"""A real Airflow for its user interface: two API servers over one database, one of them below a path of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import NoSignals
from support.airflow_stack.processes import Processes
from support.airflow_stack.stack import Airflow, Stack, _airflow, addresses, free_ports

DAGS = Path(__file__).with_name("ui_dags")
PASSWORD = "correct horse"
DELIVERIES = "deliveries"


class UiStack(Stack):
    """API servers that ask for a sign-in, a Dag folder read once, and deliveries; nothing that would run a task."""

    def __init__(self, folder: Path, processes: Processes, reporter: Reporter, deliveries: str) -> None:
        super().__init__(folder, processes, reporter)
        self._deliveries = deliveries

    def start(self, *paths: str) -> None:
        self.begin_migration()
        (self.folder / "passwords.json").write_text(json.dumps({"ann": PASSWORD, "vera": PASSWORD}))
        self._wait_for_end("db-migrate")
        self._env |= self.connections()
        self._processes.start("reserialize", _airflow("dags", "reserialize"), self._env, is_one_shot=True)
        self.servers = {path: self._start_server(path) for path in paths}
        for server in self.servers.values():
            for _ in self._wait_for("Airflow to start"):
                if server.health():
                    break
        self._wait_for_end("reserialize")

    def _start_server(self, path: str) -> Airflow:
        port, *closed = free_ports(3)
        own = addresses(port, *closed)
        url = own["AIRFLOW__API__BASE_URL"] + path
        name = f"api-server{path.replace('/', '-')}"
        self._processes.start(name, _airflow("api-server"), self._env | own | {"AIRFLOW__API__BASE_URL": url})
        server = Airflow(url)
        self._open.callback(server.close)
        return server

    def sign_in(self, path: str, user: str) -> str:
        server = self.servers[path]
        answer = httpx.post(f"{server.url}/auth/token", json={"username": user, "password": PASSWORD}, trust_env=False)
        token: str = answer.raise_for_status().json()["access_token"]
        server._http.headers["Authorization"] = f"Bearer {token}"
        return token

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin,vera:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.folder / "passwords.json"),
            "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID": DELIVERIES,
        }

    def connections(self) -> dict[str, str]:
        return {f"AIRFLOW_CONN_{DELIVERIES.upper()}": self._deliveries}


@contextmanager
def running_ui(folder: Path, deliveries: str, *paths: str) -> Iterator[UiStack]:
    """A started stack; ``deliveries`` is their database, as for an ``AIRFLOW_CONN_…`` variable."""
    signals: Any = NoSignals()
    Stack.wipe(folder)
    processes = Processes(folder, signals)
    try:
        with closing(UiStack(folder, processes, Reporter(), deliveries)) as stack:
            stack.start(*paths)
            yield stack
    finally:
        if left := processes.stop():
            raise RuntimeError(f"Could not stop {', '.join(left)}")
