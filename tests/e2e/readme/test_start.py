"""README's start, played as it stands: from an empty folder and an empty home to a transfer that was picked up.

Every command block and Dag is taken from the file and run by a shell of its own, like a terminal; calls stand for the
clicks that trigger the run and pick up. Otherwise only this differs from a reader's machine: the package comes from
this tree's wheel, and Airflow's ports are free ones. The installation is prepared, so that ``pip install`` finds
everything in place; the times that are printed count from there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import NoSignals
from support.airflow_stack.processes import Processes
from support.airflow_stack.stack import Airflow, addresses, environment, free_ports
from support.repository import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
START = README.partition("## Start")[2].partition("\n## ")[0]
(SANDBOX, AIRFLOW, EVENTS) = re.findall(r"```sh\n(.*?)```", START, re.DOTALL)
(DAG,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(DAG_FILE,) = re.findall(r"Save the Dag above as `(.+?)`", START)
UV = Path(sys.executable).with_name("uv")
TIMEOUT = 600.0


def sandbox_port() -> int:
    """Return the port that README names; another one where it is in use."""
    with closing(socket.socket()) as probe:
        return 8085 if probe.connect_ex(("127.0.0.1", 8085)) else free_ports(1)[0]


class Reader:
    """Somebody who copies what README says into terminals in an empty folder."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes, self.reporter = folder, processes, Reporter()
        self.port = sandbox_port()
        self.airflow_port, *closed = free_ports(3)
        self.env = environment() | addresses(self.airflow_port, *closed)
        self.env |= {"HOME": str(folder / "home"), "AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}
        self.env["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"

    def prepare(self) -> None:
        """Make a home and a folder that hold nothing but an installed environment, and `python3`."""
        for name in ("home", "bin", "logs"):
            (self.folder / name).mkdir()
        (self.folder / "bin/python3").symlink_to(Path(sys.executable).resolve())
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", self.folder / "dist"]
        subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
        constraints = REPOSITORY / "constraints.txt"
        requirement = re.search(r"pip install '(.+)'", SANDBOX).group(1)
        (wheel,) = (self.folder / "dist").glob("*.whl")
        requirement = f"{requirement} @ {wheel.as_uri()}"
        python = self.folder / "venv/bin/python"
        subprocess.run([UV, "venv", "--quiet", "--seed", "--python", sys.executable, python.parents[1]], check=True)
        install = [UV, "pip", "install", "--quiet", "--python", python, "--constraint", constraints, requirement]
        subprocess.run(install, check=True)
        self.reporter = Reporter()

    def adapted(self, block: str) -> str:
        if self.port != 8085:
            block = re.sub(r"^(outbound-transfer-sandbox .*)$", rf"\1 --port {self.port}", block, flags=re.MULTILINE)
        return f"cd '{self.folder}'\n{block.replace('8085', str(self.port))}"

    def open_terminal(self, name: str, block: str) -> None:
        """Run a block whose last command goes on."""
        self.processes.start(name, ["bash", "-ec", self.adapted(block)], self.env)

    def run(self, block: str) -> str:
        """Run a block to its end, and return what it prints."""
        return subprocess.run(
            ["bash", "-ec", self.adapted(block)], env=self.env, capture_output=True, text=True, check=True
        ).stdout

    def wait_for(self, what: str, is_so: Callable[[], Any]) -> None:
        for _ in self.reporter.wait_for(lambda: what, TIMEOUT, log=self.folder / "logs"):
            self.processes.check()
            if is_so():
                break
        self.reporter.say(what)

    def control(self, path: str) -> Any:
        """Return what the sandbox's control API says; None while it does not run."""
        return answer_of(f"http://127.0.0.1:{self.port}/_sandbox/{path}")

    def pick_up(self, transfer_id: str, email: str) -> None:
        url = f"http://127.0.0.1:{self.port}/_sandbox/transfers/{transfer_id}/pickup"
        httpx.post(url, json={"email": email}, trust_env=False).raise_for_status()

    def emails(self) -> list[str]:
        return [row["recipient"] for row in self.control("ledger") if row["kind"] == "emailed"]

    def loaded_types(self) -> set[str]:
        """Return the types of the events in the warehouse."""
        with closing(sqlite3.connect(self.folder / "warehouse.db")) as warehouse:
            try:
                return {row[0] for row in warehouse.execute("SELECT type FROM outbound_transfer_events")}
            except sqlite3.OperationalError:  # nothing was loaded yet
                return set()


def answer_of(url: str) -> Any:
    """Return the JSON at a URL; None while nobody listens there."""
    try:
        return httpx.get(url, trust_env=False).json()
    except httpx.TransportError:
        return None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    processes = Processes(tmp_path, NoSignals())
    reader = Reader(tmp_path, processes)
    try:
        reader.prepare()
        yield reader
    finally:
        assert processes.stop() == []
        shutil.rmtree(tmp_path / "venv")


@pytest.mark.e2e
def test_a_first_transfer_is_delivered_picked_up_and_loaded(reader: Reader) -> None:
    reader.open_terminal("sandbox", SANDBOX)
    reader.wait_for("the sandbox runs", lambda: reader.control("state"))

    (reader.folder / DAG_FILE).write_text(DAG)
    reader.open_terminal("airflow", AIRFLOW)
    reader.wait_for("Airflow is ready", lambda: "Airflow is ready" in reader.processes.log("airflow").read_text())
    url = reader.env["AIRFLOW__API__BASE_URL"]
    reader.wait_for("its pages answer", lambda: answer_of(f"{url}/api/v2/monitor/health"))  # later on a busy machine
    with closing(Airflow(url)) as airflow:
        sign_in(airflow, reader.folder)
        reader.wait_for("both Dags are there", lambda: len(airflow.call("GET", "dags")["dags"]) == 2)
        airflow.call("POST", "dags/first_delivery/dagRuns", {"logical_date": None})
        reader.wait_for("the transfer is sent", reader.emails)
        (sent,) = {row["transfer_id"] for row in reader.control("ledger")}
        reader.pick_up(sent, *reader.emails())
        reader.wait_for("the run succeeds", lambda: airflow.runs("first_delivery")[0]["state"] == "success")
        reader.wait_for("the feed is loaded", lambda: reader.loaded_types() >= {"transfer_sent", "file_downloaded"})
        page = " ".join(airflow.deliveries_page().split())
        assert re.search(r"<span>Event feed</span><b>(up to date|behind)</b>", page), "the page reads another database"
        assert "Report of manual__" in page
        assert airflow.import_errors() == []
        assert message_of_test(airflow, "outbound_transfer_default") == (
            "The transfer key is accepted. The event key is accepted."
        )
    assert reader.emails() == ["ann@example.com"]
    assert reader.processes.stop() == []
    assert "file_downloaded" in reader.run(EVENTS)


def sign_in(airflow: Airflow, folder: Path) -> None:
    """As the user whose password `airflow standalone` has made."""
    passwords = json.loads((folder / "airflow/simple_auth_manager_passwords.json.generated").read_text())
    airflow.sign_in("admin", passwords["admin"])


def message_of_test(airflow: Airflow, conn_id: str) -> str:
    """Return what the button *Test* says of a saved connection."""
    connection = airflow.call("GET", f"connections/{conn_id}")
    answer = airflow.call("POST", "connections/test", connection)
    assert answer["status"], answer
    return str(answer["message"])
