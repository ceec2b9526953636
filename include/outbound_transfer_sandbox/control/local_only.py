"""The ASGI middleware that limits the control API to programs on this machine."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outbound_transfer_sandbox.domain import host_checks
from outbound_transfer_sandbox.domain.errors import ApiError


class LoopbackOnlyMiddleware:
    """Refuses requests from other machines, from pages of other sites and through proxies.

    Peer and Host must be loopback; checking Host stops web pages that rebind their name to 127.0.0.1. A proxy on this
    machine passes both checks. It is recognized by the headers it adds, or by HTTP/1.0, which nginx uses when it
    adds none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, client = Headers(scope=scope), scope.get("client")
        peer = client[0] if client else None
        is_here = host_checks.is_loopback(peer) and host_checks.is_loopback(host_checks.host(headers))
        is_proxied = (
            host_checks.is_forwarded(headers) or scope["http_version"] == "1.0" or len(headers.getlist("host")) > 1
        )
        if not is_here or is_proxied or host_checks.is_from_another_site(headers):
            raise ApiError(403, "forbidden", "The control API accepts requests from programs on this machine only.")
        await self._app(scope, receive, send)
