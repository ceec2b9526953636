"""The ASGI application: routes, error shapes and the layers around them."""

from __future__ import annotations

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from starlette.types import ASGIApp

from . import control
from .api import events, files, http, transfers
from .api.middleware import Contained, EarlyAnswers, Edge, RequestLog
from .errors import ApiError
from .faults import Faults, Faulty
from .service.sandbox import Sandbox
from .web.app import create_web


def create_app(sandbox: Sandbox, trusted_hosts: Collection[str] = ()) -> ASGIApp:
    """The sandbox as an ASGI application. It does not close `sandbox`. `trusted_hosts`: see `web.app.create_web`."""
    app = Starlette(
        routes=[
            *transfers.routes,
            *files.routes,
            *events.routes,
            control.mount,
            Mount("/", create_web(sandbox, trusted_hosts)),
        ],
        exception_handlers={
            ApiError: http.on_api_error,
            HTTPException: http.on_http_exception,
            Exception: http.on_exception,
        },
    )
    app.router.redirect_slashes = False
    app.state.sandbox = sandbox
    app.state.faults = Faults()
    return Edge(EarlyAnswers(Faulty(RequestLog(Contained(app), sandbox), app.state.faults)))
