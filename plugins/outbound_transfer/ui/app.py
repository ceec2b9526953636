"""The application that Airflow's API server mounts: two pages and their static files. It accepts GET requests only."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from outbound_transfer.store.config import LOCAL_FILE
from outbound_transfer.store.errors import NoDeliveriesTable
from outbound_transfer.ui.filters import parse_filter, parse_number
from outbound_transfer.ui.pages import deliveries_page, render_message, task_page
from outbound_transfer.ui.threads import BoundedThreadRunner

log = logging.getLogger(__name__)

#: Seconds that a page waits for the database, and maximum number of concurrent reads in one API server.
QUERY_TIMEOUT: Final = 3.0
MAX_THREADS: Final = 4

#: Only Airflow may show the page in a frame.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


# Airflow's auth manager may query Airflow's database, so FastAPI runs this in a thread.
def _readable_dags(user: GetUserDep) -> set[str]:
    """Return the ids of the DAGs whose task instances the user may read."""
    readable: Any = get_auth_manager().get_authorized_dag_ids(user=user)
    return set(readable)


#: Users who may see Airflow's list of plugins may see the page; those who may read task instances of a DAG, their tab.
_CAN_SEE_PAGE: Final = Depends(requires_access_view(AccessView.PLUGINS))
_CAN_SEE_TASK: Final = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
_READABLE_DAGS: Final = Depends(_readable_dags)


@cache
def application() -> FastAPI:
    """Return the application of this process."""
    run = BoundedThreadRunner(MAX_THREADS, QUERY_TIMEOUT)
    app = FastAPI(title="Outbound transfers", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")), name="static")
    app.middleware("http")(_with_headers)
    app.exception_handler(HTTPException)(_http_error)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("deliveries")

    @app.get("/deliveries", dependencies=[_CAN_SEE_PAGE])
    async def deliveries(request: Request, readable: set[str] = _READABLE_DAGS) -> Response:
        wanted, now = parse_filter(request.query_params), datetime.now(UTC)
        return await _respond(run(lambda: deliveries_page(wanted, readable, now)))

    @app.get("/task", dependencies=[_CAN_SEE_TASK])
    async def task(dag_id: str, run_id: str, task_id: str, map_index: str = "") -> Response:
        if "\0" in dag_id + run_id + task_id:  # not in any name, and PostgreSQL refuses it
            raise HTTPException(404)
        # Airflow does not replace {MAP_INDEX} if the task is not mapped.
        index, now = parse_number(map_index, -1), datetime.now(UTC)
        key = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": index}
        return await _respond(run(lambda: task_page(key, now)))

    return app


async def _respond(page: Awaitable[Response]) -> Response:
    """Return the page, or one that says what to do if its read fails."""
    try:
        return await page
    except NoDeliveriesTable as error:
        return render_message(200, "No deliveries are stored", str(error))
    except TimeoutError:
        text = f"It did not respond within {QUERY_TIMEOUT:g} seconds. {_TO_DO}"
        return render_message(503, "The database does not respond", text)
    except Exception as error:
        # Drivers put addresses and users into their messages. They go to the API server's log only.
        log.warning("Could not read the deliveries", exc_info=True)
        text = f"The read failed with {type(error).__name__}; the API server's log has the details. {_TO_DO}"
        return render_message(503, "Could not read the deliveries", text)


_TO_DO: Final = (
    "Check that the connection deliveries_conn_id ([outbound_transfer] in Airflow's configuration) is right, that its "
    "database is running, and that the API server can reach it, then reload. Without that connection, deliveries are "
    f"in the file {LOCAL_FILE} in AIRFLOW_HOME, which the API server must be able to write."
)


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _http_error(request: Request, error: Exception) -> Response:  # noqa: ARG001  # as FastAPI calls it
    assert isinstance(error, HTTPException)
    title, text = _HTTP_ERRORS.get(error.status_code, (error.detail, "Choose a page in Airflow's navigation."))
    response = render_message(error.status_code, title, text)
    response.headers.update(error.headers or {})
    return response


_HTTP_ERRORS: Final = {
    401: ("You are not signed in", "Sign in to Airflow, then open this page again."),
    403: ("Access denied", "Ask an administrator of Airflow for permission to read this DAG, or plugins."),
}
