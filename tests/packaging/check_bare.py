"""Played by the interpreter of a clean environment that holds the wheel and what it requires, and nothing else:
``python -I check_bare.py FOLDER``. Imports every module, then delivers a file to the installed sandbox."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

BIN = Path(sys.prefix) / "bin"
DAG = """
from airflow.sdk import DAG
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

with DAG("delivery", schedule=None, params={"file": ""}):
    deliver = DeliverFilesOperator(
        task_id="deliver", files="{{ params.file }}", subject="Report", recipients=["ann@example.com"]
    )
    TransferSensor(
        task_id="collected", transfer_id="{{ ti.xcom_pull('deliver')['id'] }}", poke_interval=1, timeout=60
    ) << deliver
"""


def main() -> None:
    folder = Path(sys.argv[1])
    set_up(folder)
    import_everything()
    find_examples()
    ready = folder / "ready.json"
    sandbox = [BIN / "outbound-transfer-sandbox", "--port", "0", "--data", folder / "sandbox", "--ready-file", ready]
    with subprocess.Popen(sandbox, stdout=subprocess.DEVNULL) as server:
        try:
            deliver(folder, ready)
        finally:
            server.terminate()


def set_up(folder: Path) -> None:
    (folder / "dags").mkdir()
    (folder / "dags/delivery.py").write_text(DAG)
    os.environ |= {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }


def find_examples() -> None:
    """Find the folder of example Dags as Airflow does from 3.3 on, by the name of the distribution."""
    module = importlib.import_module("airflow_provider_outbound_transfer")
    assert [folder for folder in module.__path__ if Path(folder, "example_dags/first_delivery.py").is_file()]


#: What some modules are built on. They are imported only where that is installed: OpenLineage's provider asks for its
#: own, and the operators for Iceberg and for queries say which extra is missing.
_OF_EXTRAS: Final = ("airflow.providers.openlineage", "openlineage", "pyarrow", "pyiceberg", "xlsxwriter")


def import_everything() -> None:
    """A module that needs another extra to be imported would fail here. pytest's plugin is pytest's."""
    for name in ("outbound_transfer", "outbound_transfer_sandbox"):
        package = importlib.import_module(name)
        assert str(package.__file__).startswith(sys.prefix), package.__file__
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if module.name.rpartition(".")[2] not in ("__main__", "pytest_plugin"):
                import_one(module.name)


def import_one(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(_OF_EXTRAS):
            raise


def deliver(folder: Path, ready: Path) -> None:
    from outbound_transfer_sandbox.testing import Sandbox

    while not ready.exists():
        time.sleep(0.05)
    sandbox = Sandbox(**json.loads(ready.read_text()))
    os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"] = sandbox.airflow_connection()
    report = folder / "report.csv"
    report.write_bytes(b"a,b\n1,2\n")
    airflow("db", "migrate")
    threading.Thread(target=pick_up, args=(sandbox,), daemon=True).start()
    told = airflow("dags", "test", "delivery", "--conf", json.dumps({"file": str(report)}))
    assert "state=success" in told, told
    transfer_id = sandbox.assert_sent_once()
    sandbox.assert_delivered(transfer_id, {report.name: report}, "ann@example.com")
    assert sandbox.transfer(transfer_id)["status"] == "complete"


def pick_up(sandbox: object) -> None:
    while True:
        for row in sandbox.ledger():  # type: ignore[attr-defined]
            if row["kind"] == "emailed":
                sandbox.pickup(row["transfer_id"], row["recipient"])  # type: ignore[attr-defined]
                return
        time.sleep(0.2)


def airflow(*arguments: str) -> str:
    done = subprocess.run([BIN / "airflow", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


main()
