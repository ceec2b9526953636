"""The Airflow plugin. Every Airflow component imports it, so it imports little else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: Where the application is mounted. Links to it have no leading slash, so that they work under a sub-path too.
PREFIX: Final = "/outbound-transfer"

_HERE: Final = PREFIX.removeprefix("/")
_TASK: Final = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"


class LazyApplication:
    """Creates the application with the first request, which only the API server gets."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from outbound_transfer.ui.app import application

        await application()(scope, receive, send)


class OutboundTransferPlugin(AirflowPlugin):
    """The page, its navigation entry, and the view of a task instance."""

    name = "outbound_transfer"
    fastapi_apps: list[Any] = [  # noqa: RUF012  # as Airflow declares it
        {"app": LazyApplication(), "url_prefix": PREFIX, "name": "Outbound transfers"}
    ]
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Outbound transfers",
            "href": f"{_HERE}/deliveries",
            "destination": "nav",
            "category": "browse",
            "url_route": "outbound-transfers",
        },
        {
            "name": "Outbound transfers",
            "href": f"{_HERE}/task?{_TASK}",
            "destination": "task_instance",
            "url_route": "outbound-transfers-of-task",
        },
    ]
