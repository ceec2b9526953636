"""Security checks and response headers of all pages."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbound_transfer_sandbox.domain import host_checks
from outbound_transfer_sandbox.domain.errors import ApiError

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer, browsers would send forms with `Origin: null`. No pickup link leaves in a same-origin referrer.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class SecurityMiddleware:
    """Refuses rebindable host names and requests from other sites, and adds missing security headers."""

    def __init__(self, app: ASGIApp, trusted_hosts: Collection[str] = ()) -> None:
        self._app = app
        self._trusted = {name.lower() for name in trusted_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        # The page raises it, so that it becomes an error page.
        scope["state"]["refusal"] = self._refusal(scope["method"], Headers(scope=scope))
        await self._app(scope, receive, add_headers)

    def _refusal(self, method: str, headers: Headers) -> ApiError | None:
        name = host_checks.host(headers)
        if host_checks.is_rebindable(name) and name not in self._trusted:
            message = "The sandbox does not know this host name. Start it with --trusted-host to allow the name."
            return ApiError(421, "misdirected", message)
        if method not in {"GET", "HEAD"} and host_checks.is_from_another_site(headers):
            return ApiError(403, "forbidden", "The form was sent by another site.")
        return None
