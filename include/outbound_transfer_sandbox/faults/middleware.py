"""The ASGI middleware that lets planned faults happen."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from .interception import InterceptedCall
from .queue import FaultQueue


class FaultInjectionMiddleware:
    """Sends calls under /v1 through the queue of planned faults. The control API and the pages have no faults."""

    def __init__(self, app: ASGIApp, faults: FaultQueue) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/v1/"):
            await self._faults.dispatch(InterceptedCall(self._app, scope, receive, send))
        else:
            await self._app(scope, receive, send)
