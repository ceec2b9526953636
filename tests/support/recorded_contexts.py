"""What a running try learned from real versions of Airflow, to be replayed; :mod:`versions.record_contexts` records it.

A recorded context has the attributes that Airflow gave it, and its task instance returns what the task SDK's calls
returned. A call that was not recorded fails the test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

_FOLDER = Path(__file__).with_name("contexts")


class CallFailed(Exception):
    """A call that raised an error when it was recorded; in front of its text is the name of that error."""


def file_of(version: str) -> Path:
    """Return the file of a version of Airflow."""
    return _FOLDER / f"{version}.json"


def recorded_versions(case: str = "first try") -> list[str]:
    """Return the versions of Airflow with which a case was recorded, oldest first."""
    found = [file.stem for file in _FOLDER.glob("*.json") if case in _read(file.stem)]
    return sorted(found, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


@cache
def _read(version: str) -> dict[str, list[dict[str, Any]]]:
    cases: dict[str, list[dict[str, Any]]] = json.loads(file_of(version).read_text())
    return cases


def recorded(version: str, case: str, task_id: str = "plain") -> list[RecordedContext]:
    """Return the contexts of a task in a case, in the order in which they were recorded."""
    return [RecordedContext(known) for known in _read(version)[case] if known["ti"]["task_id"] == task_id]


@dataclass(frozen=True)
class RecordedContext:
    """What one try knew.

    :ivar known: the record, as JSON.
    """

    known: dict[str, Any]

    @property
    def step(self) -> str:
        """The operator's method that ran, or the state of the task instance that its process had waited for."""
        return str(self.known["step"])

    @property
    def iteration(self) -> int | None:
        """The iteration of the loop; None outside a loop."""
        return self.known["loop"] and int(self.known["loop"]["index"])

    @property
    def stored(self) -> Any:
        """What the task state store returned: the tries, in the order in which they had written; None before 3.3."""
        return self.known["state_store"]["get"]["returned"] if "state_store" in self.known else None

    @property
    def can_store(self) -> bool:
        """Whether the task state store took what the try wrote."""
        return self.known["state_store"]["set"] == {"returned": None}

    def context(self, **changes: Any) -> dict[str, Any]:
        """Return a context like Airflow's.

        :param changes: keys that it gets instead.
        """
        dag_run = _with_times(self.known["dag_run"])
        loop = {"loop": SimpleNamespace(**self.known["loop"])} if self.known["loop"] else {}
        dag = SimpleNamespace(task_ids=self.known["task_ids"])
        return {"ti": self.task_instance(), "dag_run": dag_run, "dag": dag} | loop | changes

    def task_instance(self) -> SimpleNamespace:
        """Return the context's task instance."""
        fields = dict(self.known["ti"])
        if "region_id" in fields:
            fields["region_id"] = UUID(fields["region_id"])
        group = None
        for name in reversed(self.known["groups"]):
            own = {"max_iterations": self.known["loop"]["max_iterations"]} if name == "LoopTaskGroup" else {}
            group = SimpleNamespace(parent_group=group, **own)
        task = SimpleNamespace(task_id=fields["task_id"], retries=self.known["retries"], task_group=group)
        server = SimpleNamespace(next_method=self.known["next_method"], max_tries=fields["max_tries"])
        methods = {name: self._replay(name) for name in self.known["methods"]}
        return SimpleNamespace(**fields, **methods, task=task, _ti_context_from_server=server)

    def _replay(self, method: str) -> Callable[..., Any]:
        outcomes = [(given, outcome) for name, given, outcome in self.known["calls"] if name == method]

        def replay(**given: Any) -> Any:
            wanted = _comparable(given)
            for recorded, outcome in outcomes:
                if _comparable(recorded) == wanted:
                    return _result(method, outcome)
            raise AssertionError(f"{method}({given}) was not recorded, only {[recorded for recorded, _ in outcomes]}")

        return self._find_previous if method == "get_previous_ti" else replay

    def _find_previous(self, *, logical_date: datetime, map_index: int) -> Any:
        """Return the newest of the recorded task instances whose run is due before a time."""
        found = [outcome for name, given, outcome in self.known["calls"] if name == "get_previous_ti"]
        assert found, "the other runs were not asked for"
        older = [outcome for outcome in found if outcome.get("returned") and _date_of(outcome) < logical_date]
        return _result("get_previous_ti", max(older, key=_date_of)) if older else None


def _comparable(given: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(value) if isinstance(value, list) else value for name, value in given.items() if value}


def _date_of(outcome: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(outcome["returned"]["logical_date"])


def _result(method: str, outcome: dict[str, Any]) -> Any:
    if "raised" in outcome:
        raise CallFailed(f"{outcome['raised']}: {outcome['text']}")
    returned = outcome["returned"]
    return _with_times(returned) if method == "get_previous_ti" else returned


def _with_times(fields: dict[str, Any]) -> SimpleNamespace:
    times = {"run_after", "start_date", "logical_date"}
    return SimpleNamespace(
        **{name: datetime.fromisoformat(value) if name in times and value else value for name, value in fields.items()}
    )
