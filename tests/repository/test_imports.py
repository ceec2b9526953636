"""What importing and parsing costs: names of modules and calls, counted in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.repository import REPOSITORY

pytestmark = pytest.mark.slow

ENTRANCES = [
    "outbound_transfer.operators.transfer",
    "outbound_transfer.operators.redelivery",
    "outbound_transfer.notifications.slack",
    "outbound_transfer.notifications.smtp",
    "outbound_transfer.sensors.transfer",
    "outbound_transfer.triggers.transfer",
    "outbound_transfer.transfers.event_feed_to_iceberg",
    "outbound_transfer.transfers.event_feed_to_sql",
]

#: What a Dag file's import may load beyond Airflow and the standard library: these small modules and no others.
LIGHT = {"outbound_transfer", "airflow"}

ADDED = """
import importlib, json, sys
import airflow.sdk
for name in ("BaseHook", "BaseOperator", "BaseSensorOperator", "PokeReturnValue", "conf", "timezone"):
    getattr(airflow.sdk, name)
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""

PARSE = """
import json, socket, sys
from pathlib import Path
import airflow.sdk
from airflow.sdk.definitions._internal.contextmanager import DagContext

def refuse(what):
    def refused(*args, **kwargs):
        raise AssertionError(f"parsing must not use {what}")
    return refused

socket.socket.connect = socket.socket.connect_ex = refuse("a socket")
socket.getaddrinfo = refuse("a name's lookup")
airflow.sdk.BaseHook.get_connection = airflow.sdk.Connection.get = refuse("a connection")
airflow.sdk.Variable.get = refuse("a variable")

found = {}
for file in map(Path, sys.argv[1:]):
    DagContext.autoregistered_dags.clear()
    DagContext.current_autoregister_module_name = "__main__"
    try:
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": file.stem, "__file__": str(file)})
        found[file.stem] = [dag.dag_id for dag, _ in DagContext.autoregistered_dags]
    except AssertionError as error:
        found[file.stem] = str(error)
print(json.dumps(found))
"""


def run(code: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment |= {"AIRFLOW_HOME": str(home), "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def last_line(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_operators_sensors_and_triggers_load_nothing_heavy(tmp_path: Path) -> None:
    added = last_line(run(ADDED, tmp_path, *ENTRANCES))
    foreign = {name.partition(".")[0] for name in added} - LIGHT - sys.stdlib_module_names
    assert foreign - {"pydantic", "jinja2"} == set(), added
    ours = [name for name in added if name.startswith("outbound_transfer.")]
    assert set(ENTRANCES) <= set(ours)
    late = (".client.client", ".client.transport", ".store.engine", ".store.deliveries")
    assert [name for name in ours if any(each in name for each in late)] == []
    assert [name for name in ours if name.endswith(".delivery.delivery")] == []


PLUGIN = """
import json, sys
import airflow.plugins_manager
before = set(sys.modules)
import outbound_transfer.ui.plugin as plugin
added = sorted(set(sys.modules) - before)
(app,) = plugin.OutboundTransferPlugin.fastapi_apps
print(json.dumps([added, callable(app["app"]), "outbound_transfer.ui.app" in sys.modules]))
"""


def test_the_plugin_loads_nothing_but_itself(tmp_path: Path) -> None:
    added, is_callable, loaded = last_line(run(PLUGIN, tmp_path))
    assert set(added) - {"outbound_transfer"} == {"outbound_transfer.ui", "outbound_transfer.ui.plugin"}
    assert (is_callable, loaded) == (True, False)


SCAN = """
import collections, json, os, sys
os.environ["AIRFLOW__CORE__PLUGINS_FOLDER"] = sys.argv[1]
sys.path.insert(0, sys.argv[1])
from airflow import plugins_manager
plugins_manager.ensure_plugins_loaded()
import outbound_transfer.operators.transfer, outbound_transfer.sensors.transfer
names = collections.defaultdict(list)
for name, module in list(sys.modules.items()):
    if str(getattr(module, "__file__", None) or "").startswith(sys.argv[1]):
        names[module.__file__].append(name.partition(".")[0])
plugins = [each["name"] for each in plugins_manager.get_plugin_info()].count("outbound_transfer")
print(json.dumps([len(names), sorted(set(map(tuple, names.values()))), plugins, plugins_manager.get_import_errors()]))
"""


def test_a_scan_of_the_plugins_folder_registers_one_plugin_and_imports_nothing_twice(tmp_path: Path) -> None:
    count, names, plugins, errors = last_line(run(SCAN, tmp_path, str(REPOSITORY / "plugins")))
    assert count > 3
    assert names == [["outbound_transfer"]]
    assert (plugins, errors) == (1, {})


def test_parsing_a_dag_asks_nothing_of_anybody(tmp_path: Path) -> None:
    files = sorted((REPOSITORY / "dags").glob("*.py"))
    found = last_line(run(PARSE, tmp_path, *map(str, files)))
    assert {name for name, dag_ids in found.items() if name in dag_ids} == {file.stem for file in files}, found
