"""The cluster of docker-compose.yaml, running natively: started in its order, checked as it says, killed, stopped."""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from cryptography.fernet import Fernet
from psycopg.rows import DictRow, dict_row

from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.processes import Processes
from support.airflow_stack.stack import Airflow, free_ports
from support.repository import REPOSITORY

from .compose import Condition, read
from .native import HERE, UNCHECKED, Container, containers, lay_out

FILES = (REPOSITORY / "docker-compose.yaml", HERE / "short.yaml")
START_TIMEOUT = 240.0

#: Requests a minute that the sandbox allows, unless said otherwise, and that Airflow reserves.
RATE = 300
CHECK_TIMEOUT = 30.0


class Cluster:
    """All containers of the files and the profile ``sandbox``, each a process of its own session, in ``folder``."""

    def __init__(self, folder: Path, processes: Processes, reporter: Reporter) -> None:
        self.folder, self.processes, self.reporter = folder, processes, reporter
        self.outbox = folder / "outbox"
        self.variables = variables(self.outbox)
        self.services = read([file.read_text() for file in FILES], self.variables, ["sandbox"])
        self.containers = containers(self.services, folder)
        every = [container for group in self.containers.values() for container in group]
        ports = iter(free_ports(2 * len(every)))
        self._environments = {container.name: container.environment(ports) for container in every}
        self._open = ExitStack()
        self._started: set[str] = set()
        self._healthy: set[str] = set()

    def close(self) -> None:
        """Of what this process has open; the containers run on."""
        self._open.close()

    def up(self) -> None:
        """As ``docker compose up --wait``."""
        for group in self.containers.values():
            for container in group:
                lay_out(container, self.folder)
        waiting = dict(self.services)
        for _ in self._wait_for(lambda: f"what {', '.join(waiting)} depend on"):
            for name in [name for name in waiting if self._may_start(name)]:
                del waiting[name]
                self._start(name)
            if not waiting:
                break
        checked = {name for name, service in self.services.items() if service.check}
        for _ in self._wait_for(lambda: f"the health of {', '.join(sorted(checked - self._healthy))}"):
            if all(self._is("service_healthy", name) for name in sorted(checked)):
                break
        self.reporter.say(f"Healthy by their own checks: {', '.join(sorted(checked))}")

    def _start(self, name: str) -> None:
        self._started.add(name)
        for container in self.containers[name]:
            environment, is_one_shot = self._environments[container.name], not self.services[name].check
            self.processes.start(container.name, container.command(), environment, is_one_shot=is_one_shot)
            self.reporter.say(f"{container.name} starts, {container.address}")

    def _may_start(self, name: str) -> bool:
        return all(self._is(condition, other) for other, condition in self.services[name].depends_on.items())

    def _is(self, condition: Condition, name: str) -> bool:
        """Whether a service has come to a condition; what it has come to, it keeps."""
        group = self.containers[name]
        if name not in self._started:
            return False
        if condition == "service_completed_successfully":
            return all(self.processes.has_finished(container.name) for container in group)
        if name not in self._healthy and all(map(self.is_healthy, group)):
            self._healthy.add(name)
        return name in self._healthy

    def is_healthy(self, container: Container) -> bool:
        """What its own health check says now."""
        try:
            environment = self._environments[container.name]
            run = subprocess.run(container.check(), env=environment, capture_output=True, timeout=CHECK_TIMEOUT)
        except subprocess.TimeoutExpired:
            return False
        return run.returncode == 0

    def _wait_for(self, what: Any) -> Iterator[None]:
        for _ in self.reporter.wait_for(what, START_TIMEOUT, log=self.folder / "logs"):
            self.processes.check()
            yield

    def kill(self, container: Container) -> None:
        self.processes.kill(container.name)

    @cached_property
    def airflow(self) -> Airflow:
        """The REST API, to which the administrator of ``.env`` has signed in."""
        airflow = Airflow(f"http://{self.containers['api-server'][0].address}:8080")
        self._open.callback(airflow.close)
        airflow.sign_in("admin", self.variables["AIRFLOW_ADMIN_PASSWORD"])
        return airflow

    @cached_property
    def sandbox(self) -> Sandbox:
        keys = (self.variables[f"OUTBOUND_TRANSFER_{name}API_KEY"] for name in ("", "EVENT_"))
        sandbox = Sandbox(f"http://{self.containers['sandbox'][0].address}:8085", *keys)
        self._open.callback(sandbox.close)
        return sandbox

    @cached_property
    def metadata(self) -> psycopg.Connection[DictRow]:
        """Airflow's own database."""
        return self._open.enter_context(self._database("postgres"))

    @cached_property
    def warehouse(self) -> psycopg.Connection[DictRow]:
        return self._open.enter_context(self._database("warehouse"))

    def _database(self, name: str) -> psycopg.Connection[DictRow]:
        """Each server has the database of its own user."""
        server, settings = self.containers[name][0], self.services[name].environment
        user, password = settings["POSTGRES_USER"], settings["POSTGRES_PASSWORD"]
        host = {"host": server.address, "dbname": user, "user": user, "password": password}
        return psycopg.connect(**host, autocommit=True, row_factory=dict_row)

    def told(self) -> str:
        """What is mapped here and what is not checked."""
        postgres = self.metadata.info.parameter_status("server_version")
        redis = self.containers["redis"][0]
        shown = subprocess.run(["redis-server", "--version"], env=self._environments[redis.name], capture_output=True)
        version = re.search(r"v=(\S+)", shown.stdout.decode())
        return UNCHECKED.format(postgres=postgres, redis=version and version[1])


def variables(outbox: Path) -> dict[str, str]:
    """As of ``.env``, each secret a new one."""
    names = re.findall(r"^([A-Z_]+)=", (REPOSITORY / ".env.example").read_text(), re.MULTILINE)
    return {name: secrets.token_hex(32) for name in names} | {
        "AIRFLOW_FERNET_KEY": Fernet.generate_key().decode(),
        "OUTBOUND_TRANSFER_URL": "http://sandbox:8085",
        "OUTBOUND_TRANSFER_CALLS_PER_MINUTE": str(RATE),
        "OUTBOX_DIR": str(outbox),
    }
