"""Tasks that deliver under a delivery key, each in a run of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.deliveries import DELIVERY
from support.tasks import FakeTaskInstance


@dataclass
class KeyedTaskInstance(FakeTaskInstance):
    """One task of one run in an Airflow that has others, whose states are known by run and map index."""

    airflow: dict[tuple[str, int], str] = field(default_factory=dict)

    def get_task_states(
        self, *, dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]
    ) -> dict[str, dict[str, str]]:
        key = (run_ids[0], -1 if map_index is None else map_index)
        if key == (self.run_id, self.map_index):
            return super().get_task_states(dag_id=dag_id, map_index=map_index, task_ids=task_ids, run_ids=run_ids)
        name = task_ids[0] if map_index is None else f"{task_ids[0]}_{map_index}"
        return {run_ids[0]: {name: self.airflow[key]}} if key in self.airflow else {}


def keyed_task(run_id: str, time: Any, *, airflow: Any = None, retries: int = 0, **arguments: Any) -> KeyedTaskInstance:
    """The task of a run that delivers under the key "k", unless ``arguments`` say otherwise."""
    values = {**DELIVERY, "delivery_key": "k", **arguments}
    make = lambda: DeliverFilesOperator(task_id="task", **values)  # noqa: E731
    return KeyedTaskInstance(make, time, retries, run_id=run_id, airflow={} if airflow is None else airflow)


def sqlite_connection(file: Path) -> str:
    return json.dumps({"conn_type": "sqlite", "host": str(file)})
