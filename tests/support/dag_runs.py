"""Dags run in a real Airflow: its task runner, its execution API, its metadata database."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def airflow_database() -> None:
    from airflow.utils.db import initdb

    initdb()


@dataclass
class Run:
    dag_run: Any

    @property
    def state(self) -> str:
        return str(self.dag_run.state)

    def states(self) -> dict[str, str]:
        """State by task, ``task_id`` or ``task_id[map_index]``."""
        instances = self.dag_run.get_task_instances()
        indexes = [f"[{ti.map_index}]" if ti.map_index >= 0 else "" for ti in instances]
        return {f"{ti.task_id}{index}": str(ti.state) for ti, index in zip(instances, indexes, strict=True)}

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            where = {"run_id": self.dag_run.run_id, "dag_ids": self.dag_run.dag_id, "map_indexes": map_index}
            query = XComModel.get_many(key=key, task_ids=task_id, **where)
            found = session.execute(query).scalars().first() if not hasattr(query, "first") else query.first()
            return None if found is None else json.loads(found.value) if isinstance(found.value, str) else found.value


@pytest.fixture
def run_dag(airflow_database: None) -> Iterator[Callable[..., Run]]:
    """Write a Dag file, let Airflow parse and run it: ``run_dag(source, conf={…})``, or ``suffix="yaml"``."""
    folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])

    def run(source: str, *, conf: dict[str, Any] | None = None, suffix: str = "py") -> Run:
        from support.airflow_names import DagBag

        file = folder / f"under_test.{suffix}"
        file.write_text(textwrap.dedent(source))
        bag = DagBag(str(folder))
        assert not bag.import_errors, bag.import_errors
        (dag,) = bag.dags.values()
        return Run(dag.test(run_conf=conf))

    yield run
    for file in folder.glob("under_test.*"):
        file.unlink()
