"""The ASGI application: all routes, their error responses and the middleware around them."""

from __future__ import annotations

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from starlette.types import ASGIApp

from outbound_transfer_sandbox.api import events, files, requests, transfers
from outbound_transfer_sandbox.control import routes as control
from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.faults.middleware import FaultInjectionMiddleware
from outbound_transfer_sandbox.faults.queue import FaultQueue
from outbound_transfer_sandbox.service.sandbox import SandboxService
from outbound_transfer_sandbox.web.app import create_web

from .middleware import (
    AutoPickupMiddleware,
    DrainRequestBodyMiddleware,
    ExceptionLoggingMiddleware,
    HeaderMiddleware,
    RequestLogMiddleware,
)


def create_app(sandbox: SandboxService, trusted_hosts: Collection[str] = ()) -> ASGIApp:
    """Return the ASGI application of `sandbox`, which the caller closes. `trusted_hosts`: see `web.app.create_web`."""
    app = Starlette(
        routes=[
            *transfers.routes,
            *files.routes,
            *events.routes,
            control.mount,
            Mount("/", create_web(sandbox, trusted_hosts)),
        ],
        exception_handlers={
            ApiError: requests.on_api_error,
            HTTPException: requests.on_http_exception,
            Exception: requests.on_exception,
        },
    )
    app.router.redirect_slashes = False
    app.state.sandbox = sandbox
    app.state.faults = FaultQueue()
    logged = RequestLogMiddleware(ExceptionLoggingMiddleware(AutoPickupMiddleware(app, sandbox)), sandbox)
    return HeaderMiddleware(DrainRequestBodyMiddleware(FaultInjectionMiddleware(logged, app.state.faults)))
