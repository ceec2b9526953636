"""A real Airflow on PostgreSQL that holds secrets and tells all that it can, and everything that can be read of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from e2e.secrets.scan import Haystack, PlantedSecret, files, tables
from support.airflow_stack.many_sandboxes import ManySandboxesStack
from support.airflow_stack.stack import unless_busy
from support.postgres import Database
from support.raw_server import answer as raw_answer
from support.raw_server import header, read_body
from support.timeouts import eventually

ANSWER = PlantedSecret("security answer", "cinnamon-7731-heron")
PHONE = PlantedSecret("phone number", "+1 (555) 867-5309")
MALFORMED_PHONE = PlantedSecret("malformed phone", "+1 555 86x 4177")
WRONG_KEY = PlantedSecret("refused key", "otk_refused_66d1c04fa97e")
WRONG_EVENT_KEY = PlantedSecret("refused event key", "obs_refused_0b57ae44c219")

MIRRORED_KEY = PlantedSecret("mirrored key", "otk_mirrored_c3a1e8d95f27")
MIRRORED_EVENT_KEY = PlantedSecret("mirrored event key", "obs_mirrored_91be60d7fa48")

LINEAGE: Final = "lineage.jsonl"

#: Of Airflow's REST API; the run's own are below `dags/canary/dagRuns/…`.
TRANSFER_SYNC: Final = (
    *("assets", "assets/events", "config", "connections", "dagSources/canary", "dags", "dags/canary/details"),
    *("dags/canary/dagRuns", "dags/canary/tasks", "eventLogs", "importErrors", "jobs", "plugins", "providers"),
    *("variables", "dags/canary/dagVersions", "dagWarnings"),
)


class SecretsStack(ManySandboxesStack):
    """Airflow with secrets that it gets from its environment alone, and that tells all that it can."""

    def __init__(self, *arguments: Any, mirror: str, no_http: str) -> None:
        """
        :param mirror: the address of a service that refuses all and quotes secrets.
        :param no_http: of one that sends back the header with the key.
        """
        super().__init__(*arguments)
        self.mirrors = {"MIRROR": mirror, "NO_HTTP": no_http}

    def start(self) -> None:
        with closing(self.database.connect(autocommit=True)) as connection:
            connection.execute("CREATE DATABASE warehouse")
        super().start()

    @property
    def warehouse_database(self) -> Database:
        return Database(self.database.host, "warehouse")

    def settings(self) -> dict[str, str]:
        ann = {"email": "ann@example.com", "phone": PHONE.value}
        return super().settings() | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
            "AIRFLOW__CORE__PARALLELISM": "6",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
            "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "60",  # a busy machine needs more than 10 s
            # A fork shares the channel to the task's supervisor, and may hang there.
            "AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD": "True",
            "AIRFLOW__OPENLINEAGE__DEBUG_MODE": "True",
            "AIRFLOW__OPENLINEAGE__INCLUDE_FULL_TASK_INFO": "True",
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "canary",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(self.folder / "airflow" / LINEAGE), "append": True}
            ),
            "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID": "warehouse",
            "AIRFLOW_VAR_CANARY_ANSWER": ANSWER.value,
            "AIRFLOW_VAR_CANARY_RECIPIENTS": json.dumps([ann, {"email": "bob@example.com", "phone": PHONE.value}]),
            "AIRFLOW_VAR_CANARY_MALFORMED": json.dumps([ann | {"phone": MALFORMED_PHONE.value}]),
            "CANARY_FILE": str(self.files[0]),
        }

    def connections(self) -> dict[str, str]:
        good, unclear, unclear_sms, forbidden = (each.airflow_connection() for each in self.sandboxes)
        refused = json.loads(good) | {"password": WRONG_KEY.value, "extra": {"event_api_key": WRONG_EVENT_KEY.value}}
        mirrored = {"password": MIRRORED_KEY.value, "extra": {"event_api_key": MIRRORED_EVENT_KEY.value}}
        mirrors = {
            f"AIRFLOW_CONN_{name}": json.dumps(json.loads(good) | mirrored | {"host": url, "port": None})
            for name, url in self.mirrors.items()
        }
        return mirrors | {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": good,
            "AIRFLOW_CONN_UNCLEAR": unclear,
            "AIRFLOW_CONN_UNCLEAR_SMS": unclear_sms,
            "AIRFLOW_CONN_FORBIDDEN": forbidden,
            "AIRFLOW_CONN_REFUSED": json.dumps(refused),
            "AIRFLOW_CONN_WAREHOUSE": self.warehouse_database.airflow_connection,
        }

    def canaries(self) -> list[PlantedSecret]:
        keys = [
            PlantedSecret(f"{kind} of sandbox {number}", key)
            for number, sandbox in enumerate(self.sandboxes)
            for kind, key in (("transfer key", sandbox.transfer_api_key), ("event key", sandbox.event_api_key))
        ]
        mirrored = [MIRRORED_KEY, MIRRORED_EVENT_KEY]
        return [ANSWER, PHONE, MALFORMED_PHONE, WRONG_KEY, WRONG_EVENT_KEY, *mirrored, *keys]

    def places(self) -> Iterator[Haystack]:
        """Everything that this Airflow keeps, has said and can be asked."""
        yield from tables(self.database)
        yield from tables(self.warehouse_database)
        yield from files(self.folder / "airflow")
        # The sandboxes print their keys when they start, as whoever starts them needs them.
        yield from (place for place in files(self.folder / "logs") if "sandbox" not in place.name)
        yield from self.answers()

    def answers(self) -> Iterator[Haystack]:
        """What the REST API and the pages of the provider answer."""
        with httpx.Client(base_url=self.airflow.url, timeout=60, trust_env=False, follow_redirects=True) as http:
            yield from (answer(http, f"/api/v2/{path}", limit=1000) for path in TRANSFER_SYNC)
            views = [
                view["href"]
                for plugin in self.airflow.call("GET", "plugins", limit=1000)["plugins"]
                for view in plugin["external_views"]
                if plugin["name"].startswith("outbound_transfer")
            ]
            for task in self.tasks():
                yield from self.answers_of(http, task)
                yield from (answer(http, f"/{filled(href, task)}") for href in views)

    def answers_of(self, http: httpx.Client, task: dict[str, Any]) -> Iterator[Haystack]:
        instance = f"dags/canary/dagRuns/{task['dag_run_id']}/taskInstances/{task['task_id']}"
        index = {"map_index": task["map_index"]}
        one = f"/{task['map_index']}" if task["map_index"] >= 0 else ""
        yield answer(http, f"/api/v2/{instance}{one}")
        yield answer(http, f"/api/v2/{instance}{one}/tries")
        for path in ("links", "state-store", "xcomEntries"):
            yield answer(http, f"/api/v2/{instance}/{path}", **index)
        for entry in self.airflow.call("GET", f"{instance}/xcomEntries", **index)["xcom_entries"]:
            yield answer(http, f"/api/v2/{instance}/xcomEntries/{entry['key']}", **index)
        for number in range(1, task["try_number"] + 1):
            yield answer(http, f"/api/v2/{instance}/logs/{number}", full_content=True, **index)

    def tasks(self) -> list[dict[str, Any]]:
        """The task instances of the one run."""
        found: list[dict[str, Any]] = self.airflow.call("GET", "dags/canary/dagRuns/~/taskInstances", limit=1000)[
            "task_instances"
        ]
        return found


def refuse_and_quote(stream: socket.socket, request: bytes) -> None:
    """A service that quotes the secrets of a draft, and in a header the key."""
    body = request.partition(b"\r\n\r\n")[2]
    while len(body) < int(header(request, "Content-Length") or 0):
        body += stream.recv(65_536)
    new = json.loads(body)
    answer, phone = new.get("security_answer", "No"), new["recipients"][0].get("phone", "1")
    told = json.dumps({"error": answer, "message": f"Not {answer}, not {phone}"}).encode()
    stream.sendall(raw_answer(told, "400 Bad Request", f"X-Echo: {header(request, 'Authorization')}"))


def send_the_key_back(stream: socket.socket, request: bytes) -> None:
    """No HTTP, but what was said."""
    read_body(stream, request)
    stream.sendall(f"Authorization: {header(request, 'Authorization')}\r\n\r\n".encode())


def answer(http: httpx.Client, path: str, **params: Any) -> Haystack:
    # httpx takes the query out of an address where it is given an empty one.
    response = eventually(lambda: unless_busy(http.get(path, params=params or None)))
    return Haystack(f"GET {path} {params} {response.status_code}", response.content)


def filled(href: str, task: dict[str, Any]) -> str:
    """The address of a view for a task instance."""
    names = {"{DAG_ID}": "dag_id", "{RUN_ID}": "dag_run_id", "{TASK_ID}": "task_id", "{MAP_INDEX}": "map_index"}
    for name, field in names.items():
        href = href.replace(name, quote(str(task[field]), safe=""))
    return href
