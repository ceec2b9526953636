"""What holds for every page: who may be asked under which name, and what a browser may do with the answer."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbound_transfer_sandbox import hosts
from outbound_transfer_sandbox.errors import ApiError

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that, browsers send forms with `Origin: null`. Links are in no referrer that leaves.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses names that may be rebound and requests of other sites; adds the headers above where they are missing."""

    def __init__(self, app: ASGIApp, trusted_hosts: Collection[str] = ()) -> None:
        self._app = app
        self._trusted = {name.lower() for name in trusted_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        # Raised by the page: out here nobody would make an answer of it.
        scope["state"]["refusal"] = self._refusal(scope["method"], Headers(scope=scope))
        await self._app(scope, receive, guarded)

    def _refusal(self, method: str, headers: Headers) -> ApiError | None:
        name = hosts.host(headers)
        if hosts.is_rebindable(name) and name not in self._trusted:
            message = "This address is not known here. Start the sandbox with --trusted-host to use it."
            return ApiError(421, "misdirected", message)
        if method not in {"GET", "HEAD"} and hosts.is_from_another_site(headers):
            return ApiError(403, "forbidden", "The form was sent by another site.")
        return None
