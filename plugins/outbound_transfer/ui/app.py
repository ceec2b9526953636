"""The application that Airflow's API server mounts: two pages and their static files. It accepts GET requests only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from outbound_transfer.delivery.place import require_deliveries
from outbound_transfer.links.transfer import find_web_url
from outbound_transfer.store.config import LOCAL_FILE, stores_recipients
from outbound_transfer.store.errors import NoDeliveriesTable
from outbound_transfer.ui import filters, queries, view_models
from outbound_transfer.wording import format_duration

log = logging.getLogger(__name__)

#: Seconds that a page waits for the database; less for other sessions, so that it can show the error. And maximum
#: number of concurrent reads in one API server.
QUERY_TIMEOUT: Final = 3.0
_SESSION_TIMEOUT: Final = 2.0
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
    """Return the ids of the Dags whose task instances the user may read."""
    readable: Any = get_auth_manager().get_authorized_dag_ids(user=user)
    return set(readable)


#: The page is for users who may see Airflow's plugin list; a task's tab, for those who may read its Dag's instances.
_CAN_SEE_PAGE: Final = Depends(requires_access_view(AccessView.PLUGINS))
_CAN_SEE_TASK: Final = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
_READABLE_DAGS: Final = Depends(_readable_dags)


@cache
def application() -> FastAPI:
    """Return the application of this process."""
    run = BoundedThreadRunner()
    app = FastAPI(title="Outbound transfers", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")), name="static")
    app.middleware("http")(_with_headers)
    app.exception_handler(HTTPException)(_http_error)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("deliveries")

    @app.get("/deliveries", dependencies=[_CAN_SEE_PAGE])
    async def deliveries(request: Request, readable: set[str] = _READABLE_DAGS) -> Response:
        wanted, now = filters.parse_filter(request.query_params), datetime.now(UTC)
        return await _respond(run(lambda: _deliveries_page(wanted, readable, now)))

    @app.get("/task", dependencies=[_CAN_SEE_TASK])
    async def task(dag_id: str, run_id: str, task_id: str, map_index: str = "") -> Response:
        if "\0" in dag_id + run_id + task_id:  # not in any name, and PostgreSQL refuses it
            raise HTTPException(404)
        # Airflow does not replace {MAP_INDEX} if the task is not mapped.
        index, now = filters.parse_number(map_index, -1), datetime.now(UTC)
        key = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": index}
        return await _respond(run(lambda: _task_page(key, now)))

    return app


async def _respond(page: Awaitable[Response]) -> Response:
    """Return the page, or one that says what to do if the read fails."""
    try:
        return await page
    except NoDeliveriesTable as error:
        return _render_message(200, "No deliveries are stored", str(error))
    except TimeoutError:
        text = f"It did not respond within {QUERY_TIMEOUT:g} seconds. {_TO_DO}"
        return _render_message(503, "The database does not respond", text)
    except Exception as error:
        # Drivers' messages contain addresses and user names, so they go only to the API server's log.
        log.warning("Could not read the deliveries", exc_info=True)
        text = f"The read failed with {type(error).__name__}; the API server's log has the details. {_TO_DO}"
        return _render_message(503, "Could not read the deliveries", text)


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
    response = _render_message(error.status_code, title, text)
    response.headers.update(error.headers or {})
    return response


_HTTP_ERRORS: Final = {
    401: ("You are not signed in", "Sign in to Airflow, then open this page again."),
    403: ("Access denied", "Ask an Airflow administrator for permission to read this Dag, or plugins."),
}


class BoundedThreadRunner:
    """Runs functions in a few daemon threads. One that hangs keeps its thread; the process can exit without it.

    ``anyio.to_thread`` and executors do not fit: their threads are not daemons, so the API server could not exit while
    a database does not respond; and anyio starts another thread for each call that was given up.
    """

    def __init__(self) -> None:
        self._calls = SimpleQueue[tuple[Future[Response], Callable[[], Response]]]()
        for _ in range(MAX_THREADS):
            Thread(target=self._work, name="outbound-transfer-page", daemon=True).start()

    async def __call__(self, function: Callable[[], Response]) -> Response:
        """Run ``function`` and return its result, or raise its error.

        :raises asyncio.TimeoutError: no result in time. A function that has begun continues, and its result is dropped.
        """
        future: Future[Response] = Future()
        self._calls.put((future, function))
        return await asyncio.wait_for(asyncio.wrap_future(future), QUERY_TIMEOUT)

    def _work(self) -> None:
        while True:
            future, function = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)
                except BaseException as error:  # SystemExit and KeyboardInterrupt must not stop the event loop
                    future.set_exception(RuntimeError(f"the read failed with {error!r}"))


def _deliveries_page(wanted: filters.Filter, readable: Collection[str], now: datetime) -> HTMLResponse:
    """Render the deliveries page: see :func:`.queries.overview`."""
    place = require_deliveries()
    found = queries.overview(place.open(patience=0.0, timeout=_SESSION_TIMEOUT), wanted, readable, now)
    counts, deliveries = found.get("counts", []), found.get("deliveries", [])
    return _render(
        "deliveries.html",
        now=now,
        wanted=wanted,
        refresh=wanted.refresh * filters.REFRESH_SECONDS,
        windows=filters.WINDOWS,
        choices=filters.CHOICES,
        has_table=bool(found),
        place=place,
        local_file=LOCAL_FILE,
        deliveries=_show(deliveries[: queries.PAGE_SIZE], now),
        has_more=len(deliveries) > queries.PAGE_SIZE,
        outcomes=filters.OUTCOMES,
        totals=view_models.totals(counts, filters.window_start(wanted.days, now)),
        picture=view_models.draw(counts, now),
        feeds=[view_models.show_feed(row, now) for row in found.get("feeds", [])],
        max_rejected=queries.MAX_REJECTED,
    )


def _task_page(task: queries.Row, now: datetime) -> HTMLResponse:
    """Render the deliveries of one task instance: see :func:`.queries.task_deliveries`."""
    rows = queries.task_deliveries(require_deliveries().open(patience=0.0, timeout=_SESSION_TIMEOUT), task)
    return _render("task.html", now=now, refresh=0, deliveries=_show(rows, now, max_subject=2_000))


def _show(rows: Iterable[queries.Row], now: datetime, **options: Any) -> list[view_models.Shown]:
    find, options["shows_recipients"] = cache(find_web_url), stores_recipients()
    return [view_models.show_delivery(row, now, find, **options) for row in rows]


@cache
def _environment() -> Environment:
    environment = Environment(loader=PackageLoader("outbound_transfer.ui"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {"timestamp": view_models.format_timestamp, "duration": format_duration}
    return environment


def _render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template as a response that is not cached."""
    html = _environment().get_template(template).render(**values)
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})


def _render_message(status: int, title: str, text: str) -> HTMLResponse:
    """Render a page with a message: what is wrong, and what to do."""
    return _render("message.html", status, title=title, text=text, refresh=False)
