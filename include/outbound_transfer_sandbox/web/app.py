"""The pages as one ASGI application, mounted beside the API."""

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

from outbound_transfer_sandbox.errors import ApiError
from outbound_transfer_sandbox.service.sandbox import Sandbox

from . import account, events, keys, mailbox, pages, pickup, sign_in, transfers
from .guard import Guard


async def home(_request: Request) -> Response:
    return RedirectResponse("/transfers", 303)


def create_web(sandbox: Sandbox, trusted_hosts: Collection[str]) -> Starlette:
    """The pages of `sandbox`. They answer to addresses, localhost and `trusted_hosts`, under no other name."""
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
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ],
        middleware=[Middleware(Guard, trusted_hosts=trusted_hosts)],
        exception_handlers={
            ApiError: pages.on_api_error,
            HTTPException: pages.on_http_exception,
            Exception: pages.on_exception,
        },
    )
    app.router.redirect_slashes = False
    app.state.sandbox = sandbox
    app.state.shown_once = {}
    return app
