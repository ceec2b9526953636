"""The web application as an ASGI application, mounted beside the API."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.service.sandbox import SandboxService

from . import account, events, keys, mailbox, pickup, rendering, sign_in, transfers
from .security import SecurityMiddleware


async def home(_request: Request) -> Response:
    return RedirectResponse("/transfers", 303)


def create_web(sandbox: SandboxService, trusted_hosts: Collection[str]) -> Starlette:
    """Return the pages of `sandbox`. Their host must be an address, localhost or one of `trusted_hosts`."""
    app = Starlette(
        routes=[
            Route("/", home),
            *sign_in.routes,
            *transfers.routes,
            *keys.routes,
            *account.routes,
            *events.routes,
            *mailbox.routes,
            *pickup.routes,
            # One name, no path: resolving a path of 1,500 folders costs more than in proportion.
            Mount("/static", routes=[Route("/{name}", StaticFiles(directory=Path(__file__).parent / "static"))]),
        ],
        middleware=[Middleware(SecurityMiddleware, trusted_hosts=trusted_hosts)],
        exception_handlers={
            ApiError: rendering.on_api_error,
            HTTPException: rendering.on_http_exception,
            Exception: rendering.on_exception,
        },
    )
    app.router.redirect_slashes = False
    app.state.sandbox = sandbox
    app.state.flash_secrets = {}
    return app
