"""The application that Airflow's API server mounts: two pages and their static files. It answers GET, and changes
nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from functools import cache
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from outbound_transfer.ui import pages
from outbound_transfer.ui.access import MAY_SEE_THE_PAGE, MAY_SEE_THE_TASK, READABLE_DAGS
from outbound_transfer.ui.bounded import Reads
from outbound_transfer.ui.filters import filter_of
from outbound_transfer.ui.kept import Kept
from outbound_transfer.ui.ledger import Ledger, NotConfigured, Read
from outbound_transfer.ui.views import deliveries_page, task_page

log = logging.getLogger(__name__)

#: Seconds that a page waits for the warehouse, and how many of its reads may hang at once in one API server.
PATIENCE: Final = 3.0
AT_ONCE: Final = 4

#: Seconds for which the counts behind the plots are kept, for all who see the same DAGs.
KEEP: Final = 20.0

_UNMAPPED: Final = -1


@cache
def application() -> FastAPI:
    """The application of this process."""
    return create_application(Reads(AT_ONCE, PATIENCE), Kept(KEEP))


def create_application(reads: Reads, kept: Kept) -> FastAPI:
    """The application, whose reads of the warehouse go through ``reads``, and whose counts are ``kept``."""
    app = FastAPI(title="Outbound transfers", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    app.middleware("http")(_with_headers)
    app.exception_handler(HTTPException)(_refused)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("deliveries")

    @app.get("/deliveries", dependencies=[MAY_SEE_THE_PAGE])
    async def deliveries(request: Request, readable: set[str] = READABLE_DAGS) -> Response:
        wanted, now = filter_of(request.query_params), datetime.now(timezone.utc)
        return await _answered(
            reads,
            lambda: Ledger.configured(kept).overview(wanted, readable, now),
            lambda read: deliveries_page(read, wanted, now),
        )

    @app.get("/task", dependencies=[MAY_SEE_THE_TASK])
    async def task(dag_id: str, run_id: str, task_id: str, map_index: str = "") -> Response:
        now = datetime.now(timezone.utc)
        if "\0" in dag_id + run_id + task_id:  # no name has one, and PostgreSQL takes none
            raise HTTPException(404)
        return await _answered(
            reads,
            lambda: Ledger.configured(kept).of_task(dag_id, run_id, task_id, _map_index(map_index)),
            lambda read: task_page(read, now),
        )

    return app


def _map_index(text: str) -> int:
    # Airflow leaves {MAP_INDEX} as it is where the task is not mapped.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else _UNMAPPED


async def _answered(reads: Reads, read: Callable[[], Read], show: Callable[[Read], Response]) -> Response:
    """What was read, shown; or what to do where it could not be."""
    try:
        return show(await reads(read))
    except NotConfigured as error:
        return pages.message(200, "No ledger is set", str(error))
    except asyncio.TimeoutError:
        return pages.message(503, "The warehouse does not answer", _SILENT.format(reads.seconds))
    except Exception as error:
        # Drivers put addresses and users into their messages; those are for the log of the API server.
        log.warning("The ledger could not be read", exc_info=True)
        return pages.message(503, "The warehouse cannot be read", _BROKEN.format(type(error).__name__))


_SILENT: Final = (
    "It gave no answer within {:g} seconds. Deliveries and ingestion go on without this page. See that the database of "
    "the connection ledger_conn_id ([outbound_transfer] in Airflow's configuration) is up, and that the API server "
    "can reach it; then reload."
)
_BROKEN: Final = (
    "Reading it ended with {}; the API server's log has the details. See that the connection ledger_conn_id "
    "([outbound_transfer] in Airflow's configuration) leads to the warehouse, and that the API server may use it."
)


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    for name, value in pages.HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001  # as FastAPI calls it
    assert isinstance(error, HTTPException)
    title, text = _REFUSALS.get(error.status_code, (error.detail, "Choose a page in Airflow's navigation."))
    response = pages.message(error.status_code, title, text)
    response.headers.update(error.headers or {})
    return response


_REFUSALS: Final = {
    401: ("You are not signed in", "Sign in to Airflow, then open this page again."),
    403: ("You may not see this", "Ask an administrator of Airflow for the right to read this DAG, or plugins."),
}
