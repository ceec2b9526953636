"""The application that Airflow's API server mounts: two pages and their static files. It accepts GET requests only."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from outbound_transfer.store.config import LOCAL_FILE
from outbound_transfer.ui import rendering
from outbound_transfer.ui.filters import parse_filter
from outbound_transfer.ui.permissions import CAN_SEE_PAGE, CAN_SEE_TASK, READABLE_DAGS
from outbound_transfer.ui.queries import TaskKey
from outbound_transfer.ui.threads import BoundedThreadRunner
from outbound_transfer.ui.views import NotConfigured, deliveries_page, task_page

log = logging.getLogger(__name__)

#: Seconds that a page waits for the database, and maximum number of concurrent reads in one API server.
QUERY_TIMEOUT: Final = 3.0
MAX_THREADS: Final = 4

_UNMAPPED: Final = -1


@cache
def application() -> FastAPI:
    """Return the application of this process."""
    return create_application(BoundedThreadRunner(MAX_THREADS, QUERY_TIMEOUT))


def create_application(runner: BoundedThreadRunner) -> FastAPI:
    """Create an application.

    :param runner: runs what reads the deliveries.
    """
    app = FastAPI(title="Outbound transfers", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=rendering.STATIC), name="static")
    app.middleware("http")(_with_headers)
    app.exception_handler(HTTPException)(_http_error)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("deliveries")

    @app.get("/deliveries", dependencies=[CAN_SEE_PAGE])
    async def deliveries(request: Request, readable: set[str] = READABLE_DAGS) -> Response:
        wanted, now = parse_filter(request.query_params), datetime.now(UTC)
        return await _respond(runner, lambda: deliveries_page(wanted, readable, now))

    @app.get("/task", dependencies=[CAN_SEE_TASK])
    async def task(dag_id: str, run_id: str, task_id: str, map_index: str = "") -> Response:
        now = datetime.now(UTC)
        if "\0" in dag_id + run_id + task_id:  # not in any name, and PostgreSQL refuses it
            raise HTTPException(404)
        key = TaskKey(dag_id, run_id, task_id, _map_index(map_index))
        return await _respond(runner, lambda: task_page(key, now))

    return app


def _map_index(text: str) -> int:
    # Airflow does not replace {MAP_INDEX} if the task is not mapped.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else _UNMAPPED


async def _respond(runner: BoundedThreadRunner, page: Callable[[], Response]) -> Response:
    """Return the page, or one that says what to do if its read fails."""
    try:
        return await runner(page)
    except NotConfigured as error:
        return rendering.render_message(200, "No deliveries are stored", str(error))
    except TimeoutError:
        return rendering.render_message(503, "The database does not respond", _TIMEOUT_TEXT.format(runner.timeout))
    except Exception as error:
        # Drivers put addresses and users into their messages. They go to the API server's log only.
        log.warning("Could not read the deliveries", exc_info=True)
        return rendering.render_message(503, "Could not read the deliveries", _ERROR_TEXT.format(type(error).__name__))


_TIMEOUT_TEXT: Final = (
    "It did not respond within {:g} seconds. Check that the database of the connection deliveries_conn_id "
    "([outbound_transfer] in Airflow's configuration) is running and that the API server can reach it, then reload. "
    f"Without that connection, deliveries are in the file {LOCAL_FILE} in AIRFLOW_HOME."
)
_ERROR_TEXT: Final = (
    "The read failed with {}; the API server's log has the details. Check that the connection deliveries_conn_id "
    "([outbound_transfer] in Airflow's configuration) is right, and that the API server may use it. Without "
    f"that connection, deliveries are in the file {LOCAL_FILE} in AIRFLOW_HOME, which the API server must be able to "
    "write."
)


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in rendering.HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _http_error(request: Request, error: Exception) -> Response:  # noqa: ARG001  # as FastAPI calls it
    assert isinstance(error, HTTPException)
    title, text = _HTTP_ERRORS.get(error.status_code, (error.detail, "Choose a page in Airflow's navigation."))
    response = rendering.render_message(error.status_code, title, text)
    response.headers.update(error.headers or {})
    return response


_HTTP_ERRORS: Final = {
    401: ("You are not signed in", "Sign in to Airflow, then open this page again."),
    403: ("Access denied", "Ask an administrator of Airflow for permission to read this DAG, or plugins."),
}
