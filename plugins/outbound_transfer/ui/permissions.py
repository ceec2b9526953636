"""Access checks by Airflow's auth manager. They may query Airflow's database, so FastAPI runs them in threads."""

from __future__ import annotations

from typing import Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from fastapi import Depends

#: Users who may see Airflow's list of plugins may see the page.
CAN_SEE_PAGE: Final = Depends(requires_access_view(AccessView.PLUGINS))

#: Users who may read task instances of the request's ``dag_id``.
CAN_SEE_TASK: Final = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))


def _readable_dags(user: GetUserDep) -> set[str]:
    """Return the ids of the DAGs whose task instances the user may read."""
    readable: Any = get_auth_manager().get_authorized_dag_ids(user=user)
    return set(readable)


READABLE_DAGS: Final = Depends(_readable_dags)
