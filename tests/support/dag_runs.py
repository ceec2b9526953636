"""DAGs run in a real Airflow: its task runner, its execution API, its metadata database."""

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
    """Airflow's metadata database, migrated once."""
    from airflow.utils.db import initdb

    initdb()


@dataclass
class Run:
    """A finished DAG run."""

    dag_run: Any

    @property
    def state(self) -> str:
        return str(self.dag_run.state)

    def states(self) -> dict[str, str]:
        """State by task, ``task_id`` or ``task_id[map_index]``."""
        return {_label(ti): str(ti.state) for ti in self.dag_run.get_task_instances()}

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            query = XComModel.get_many(
                run_id=self.dag_run.run_id,
                key=key,
                task_ids=task_id,
                dag_ids=self.dag_run.dag_id,
                map_indexes=map_index,
            )
            found = session.execute(query).scalars().first() if not hasattr(query, "first") else query.first()
            return None if found is None else json.loads(found.value) if isinstance(found.value, str) else found.value


def _label(ti: Any) -> str:
    return ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"


@pytest.fixture
def run_dag(airflow_database: None) -> Iterator[Callable[..., Run]]:
    """Write a DAG file, let Airflow parse and run it: ``run_dag(source, conf={…})``, or ``suffix="yaml"``."""
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
