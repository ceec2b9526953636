"""What a running try learned from real versions of Airflow, to be replayed; :mod:`versions.record_contexts` records it.

Its task instance returns what the task SDK's calls returned. A call that was not recorded fails the test.
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


def file_of(version: str) -> Path:
    return Path(__file__).with_name("contexts") / f"{version}.json"


def recorded_versions(case: str = "first try") -> list[str]:
    """The versions of Airflow with which a case was recorded, oldest first."""
    found = [file.stem for file in file_of("").parent.glob("*.json") if case in _read(file.stem)]
    return sorted(found, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


@cache
def _read(version: str) -> dict[str, list[dict[str, Any]]]:
    cases: dict[str, list[dict[str, Any]]] = json.loads(file_of(version).read_text())
    return cases


def recorded(version: str, case: str, task_id: str = "plain") -> list[RecordedContext]:
    return [RecordedContext(known) for known in _read(version)[case] if known["ti"]["task_id"] == task_id]


@dataclass(frozen=True)
class RecordedContext:
    known: dict[str, Any]

    @property
    def step(self) -> str:
        """The operator's method that ran, or the state of the task instance that its process had waited for."""
        return str(self.known["step"])

    def context(self, **changes: Any) -> dict[str, Any]:
        """A context like Airflow's, with ``changes`` in their places."""
        times = ("run_after", "start_date", "logical_date")
        known = self.known["dag_run"]
        dag_run = SimpleNamespace(
            **known | {name: datetime.fromisoformat(known[name]) for name in times if known.get(name)}
        )
        loop = {"loop": SimpleNamespace(**self.known["loop"])} if self.known["loop"] else {}
        dag = SimpleNamespace(task_ids=self.known["task_ids"])
        return {"ti": self.task_instance(), "dag_run": dag_run, "dag": dag} | loop | changes

    def task_instance(self) -> SimpleNamespace:
        fields = dict(self.known["ti"])
        if "region_id" in fields:
            fields["region_id"] = UUID(fields["region_id"])
        group = None
        for name in reversed(self.known["groups"]):
            own = {"max_iterations": self.known["loop"]["max_iterations"]} if name == "LoopTaskGroup" else {}
            group = SimpleNamespace(parent_group=group, **own)
        task = SimpleNamespace(task_id=fields["task_id"], retries=self.known["retries"], task_group=group)
        methods = {name: self._replay(name) for name in self.known["methods"]}
        return SimpleNamespace(**fields, **methods, task=task)

    def _replay(self, method: str) -> Callable[..., Any]:
        outcomes = [(given, outcome) for name, given, outcome in self.known["calls"] if name == method]

        def replay(**given: Any) -> Any:
            wanted = _comparable(given)
            for recorded, outcome in outcomes:
                if _comparable(recorded) == wanted:
                    return outcome["returned"]
            raise AssertionError(f"{method}({given}) was not recorded, only {[recorded for recorded, _ in outcomes]}")

        return replay


def _comparable(given: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(value) if isinstance(value, list) else value for name, value in given.items() if value}
