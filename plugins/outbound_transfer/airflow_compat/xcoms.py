"""An XCom as the API server reads it, in Airflow's database: its API would need a token of the user."""

from __future__ import annotations

import json
from typing import Any


def read_xcom(key: str, *, dag_id: str, run_id: str, task_id: str, map_index: int) -> Any:
    """Return a task instance's XCom whose value is plain JSON; None if it has none, or it is stored elsewhere.

    Call it in the API server, in a thread.
    """
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    statement = select(XComModel.value).where(
        XComModel.dag_id == dag_id,
        XComModel.run_id == run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == key,
    )
    with create_session() as session:
        value = session.scalar(statement)
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
