"""The sandbox and a real Airflow: each of its components a process, everything on this machine and in one folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import httpx
from cryptography.fernet import Fernet

from outbound_transfer_sandbox.testing import Sandbox
from support.repository import REPOSITORY
from support.timeouts import eventually

from .console import DemoFailed, Reporter
from .processes import Processes

COMPONENTS: Final = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
START_TIMEOUT: Final = 300.0
#: Seconds, in the place of Airflow's 5 to 50: on a busy machine they would fail a task.
BUSY: Final = "300"


def unless_busy(response: httpx.Response) -> httpx.Response | None:
    """None for a page that could not be read in time, to be asked for again."""
    return None if response.status_code == httpx.codes.SERVICE_UNAVAILABLE else response


class Airflow:
    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=120, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def sign_in(self, username: str, password: str) -> None:
        response = self._http.post("/auth/token", json={"username": username, "password": password})
        if response.is_error:
            raise DemoFailed(f"Airflow lets {username} not in: {response.status_code} {response.text[:500]}")
        self._http.headers["Authorization"] = f"Bearer {response.json()['access_token']}"

    def sign_in_as_administrator(self) -> None:
        """Where everybody is one; Airflow 3.1 asks for a token there, too."""
        response = self._http.get("/auth/token")
        if response.is_success:
            self._http.headers["Authorization"] = f"Bearer {response.json()['access_token']}"

    def call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Any call of the REST API, `path` below `/api/v2/`; its JSON answer."""
        response = self._http.request(method, f"/api/v2/{path}", json=body, params=params)
        if response.is_error:
            raise DemoFailed(f"Airflow answered {response.status_code} to {method} {path}: {response.text[:500]}")
        return response.json() if response.content else None

    def deliveries_page(self) -> str:
        # 503: the page gives the warehouse a few seconds, and a busy machine may need more.
        response = eventually(lambda: unless_busy(self._http.get("/outbound-transfer/deliveries")))
        if response.is_error:
            raise DemoFailed(f"Airflow answered {response.status_code} to the page: {response.text[:500]}")
        return response.text

    def health(self) -> dict[str, str | None]:
        """Status by component; empty while the API server starts."""
        with suppress(httpx.TransportError):
            response = self._http.get("/api/v2/monitor/health")
            if response.is_success:
                return {name: component["status"] for name, component in response.json().items()}
        return {}

    def has_dag(self, dag_id: str) -> bool:
        return self._http.get(f"/api/v2/dags/{dag_id}").is_success

    def import_errors(self) -> list[str]:
        dags = self.call("GET", "importErrors")["import_errors"]
        plugins = self.call("GET", "plugins/importErrors")["import_errors"]
        errors = [(error["filename"], error["stack_trace"]) for error in dags]
        errors += [(error["source"], error["error"]) for error in plugins]
        return [f"{source}: {text.strip().splitlines()[-1]}" for source, text in errors]

    def trigger(self, dag_id: str, conf: dict[str, Any]) -> str:
        return str(self.call("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})["dag_run_id"])

    def unpause(self, dag_id: str) -> None:
        self.call("PATCH", f"dags/{dag_id}", {"is_paused": False})

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        return list(self.call("GET", f"dags/{dag_id}/dagRuns", order_by="id")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return list(self.call("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"])

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        tasks = self.tasks(dag_id, run_id)
        return {f"{row['task_id']}{row['map_index'] if row['map_index'] >= 0 else ''}": row["state"] for row in tasks}

    def finish(self, dag_id: str, run_id: str) -> dict[str, str]:
        path = f"dags/{dag_id}/dagRuns/{run_id}"
        eventually(lambda: self.call("GET", path)["state"] in ("success", "failed"), interval=0.5)
        return self.states(dag_id, run_id)

    def clear(self, dag_id: str, run_id: str, *tasks: str | tuple[str, int]) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "task_ids": tasks}
        self.call("POST", f"dags/{dag_id}/clearTaskInstances", body)

    def xcom(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1, key: str = "return_value") -> Any:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.call("GET", path, map_index=map_index, stringify=False)["value"]


class Stack:
    #: Which of Airflow's components run.
    components: tuple[str, ...] = tuple(COMPONENTS)

    def __init__(self, folder: Path, processes: Processes, reporter: Reporter) -> None:
        self.folder, self._processes, self._reporter = folder, processes, reporter
        self.airflow_logs = folder / "airflow" / "logs"
        self.blobs = folder / "sandbox"
        self.warehouse = folder / "warehouse.db"
        self._open = ExitStack()

    def close(self) -> None:
        self._open.close()

    @staticmethod
    def wipe(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "logs").mkdir(parents=True)
        (folder / "airflow").mkdir(parents=True)
        folder.chmod(0o700)  # it holds keys

    def start_sandbox(self, name: str = "sandbox") -> Sandbox:
        ready, data = self.folder / f"{name}.json", self.folder / name
        program = Path(sys.executable).with_name("outbound-transfer-sandbox")
        command = [program, "--port", "0", "--ready-file", ready, "--data", data]
        self._processes.start(name, command, environment())
        for _ in self._wait_for(f"the {name}", interval=0.05):
            if ready.exists():
                break
        self.sandbox = Sandbox(**json.loads(ready.read_text()))
        self._open.callback(self.sandbox.close)
        self._reporter.say(f"The {name} runs at {self.sandbox.base_url}")
        return self.sandbox

    def begin_migration(self) -> None:
        self._env = environment() | self.settings()
        self._processes.start("db-migrate", _airflow("db", "migrate"), self._env, is_one_shot=True)
        self._reporter.say("Airflow makes its metadata database")

    def start_airflow(self) -> Airflow:
        self._wait_for_end("db-migrate")
        port, *closed = free_ports(3)
        self._env |= self.connections() | addresses(port, *closed)
        for name in self.components:
            self.start_component(name)
        self._reporter.say(f"Airflow starts: {', '.join(self.components)}")
        airflow = Airflow(self._env["AIRFLOW__API__BASE_URL"])
        self._open.callback(airflow.close)
        self._wait_until_healthy(airflow)
        airflow.sign_in_as_administrator()
        return airflow

    def _wait_for_end(self, name: str) -> None:
        for _ in self._wait_for(name):
            if self._processes.has_finished(name):
                break

    def start_component(self, name: str) -> None:
        self._processes.start(name, _airflow(*COMPONENTS[name]), self._env)

    def _wait_until_healthy(self, airflow: Airflow) -> None:
        expected = {"metadatabase", *(name.replace("-", "_") for name in self.components if name != "api-server")}
        for _ in self._wait_for("Airflow to start"):
            health = airflow.health()
            if health and expected <= {name for name, status in health.items() if status == "healthy"}:
                break
        self._reporter.say("Airflow is healthy")

    def wait_for_dags(self, airflow: Airflow, *dag_ids: str) -> None:
        for _ in self._wait_for("Airflow to read the Dags"):
            if all(airflow.has_dag(dag_id) for dag_id in dag_ids):
                break
            if errors := airflow.import_errors():
                raise DemoFailed(f"Airflow could not import {'; '.join(errors)}", self._processes.log("dag-processor"))
        self._reporter.say(f"Airflow has read the Dags {', '.join(dag_ids)}")

    def _wait_for(self, what: str, interval: float = 0.5) -> Iterator[None]:
        for _ in self._reporter.wait_for(lambda: what, START_TIMEOUT, log=self.folder / "logs", interval=interval):
            self._processes.check()
            yield

    def settings(self) -> dict[str, str]:
        home = self.folder / "airflow"
        return {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": BUSY,
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # the default asks the name server
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": BUSY,
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.airflow_logs),
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": BUSY,
            # The Dag looks once a minute, as suits recipients who take days. The demo's take seconds.
            "OUTBOUND_TRANSFER_POKE_INTERVAL": "2",
        }

    def connections(self) -> dict[str, str]:
        warehouse = {"conn_type": "sqlite", "host": str(self.warehouse)}
        return {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": self.sandbox.airflow_connection(),
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE": json.dumps(warehouse),
        }


def _airflow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def addresses(api: int, worker_logs: int, trigger_logs: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{api}"
    return {
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(api),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        # The API server reads the logs from the disk: no component serves them, so these two ports stay closed.
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
    }


def environment() -> dict[str, str]:
    """The user's environment without any other Airflow's settings, and with no proxy between the parts."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    local = ",".join(filter(None, (env.get("NO_PROXY") or env.get("no_proxy"), "127.0.0.1", "localhost")))
    return env | {"NO_PROXY": local, "no_proxy": local}


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
