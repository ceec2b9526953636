"""An XCom as the API server reads it, in Airflow's database: its API would need a token of the user."""

from __future__ import annotations

import json
from typing import Any


def read_xcom(key: str, *, dag_id: str, run_id: str, task_id: str, map_index: int) -> Any:
    """Return a task instance's XCom whose value is plain JSON; None if it has none, or it is stored elsewhere.

    None in a task loop, too, whose iterations these ids do not tell apart. Call it in the API server, in a thread.
    """
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    # Where each version stores XComs, only Airflow's own query knows: from 3.4 on, in two tables.
    statement = XComModel.get_many(key=key, dag_ids=dag_id, run_id=run_id, task_ids=task_id, map_indexes=map_index)
    with create_session() as session:
        found = session.scalars(statement).first()
        value = None if found is None else found.value
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
