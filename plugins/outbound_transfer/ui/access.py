"""Who may see what, as Airflow says. Everything here may ask Airflow's database, so FastAPI runs it in a thread."""

from __future__ import annotations

from typing import Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from fastapi import Depends

#: Whoever may see Airflow's list of plugins may see the page of one.
MAY_SEE_THE_PAGE: Final = Depends(requires_access_view(AccessView.PLUGINS))

#: Of the DAG that the request's ``dag_id`` names.
MAY_SEE_THE_TASK: Final = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))


def _readable_dags(user: GetUserDep) -> set[str]:
    """The DAGs whose task instances the user may read."""
    readable: Any = get_auth_manager().get_authorized_dag_ids(user=user)
    return set(readable)


READABLE_DAGS: Final = Depends(_readable_dags)
