"""`GET /v1/events` (service.md, Endpoints)."""

from __future__ import annotations

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.errors import ApiError, invalid_request

from . import render
from .http import integer, sandbox_of


class Events(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        feed = sandbox_of(request).feed
        try:
            sandbox_of(request).access.check_feed_key(request.headers.getlist("authorization"))
            page = feed.read(_within(request, "cursor", 0, unspecified.FOREVER), _within(request, "limit", 1, 1000))
        except ApiError as error:
            feed.log(error.status, 0)
            raise
        feed.log(200, len(page.events))
        headers = {"X-Next-Cursor": str(page.next_cursor), "X-Has-More": "true" if page.has_more else "false"}
        return Response(render.events(page.events), headers=headers, media_type="application/x-ndjson")


def _within(request: Request, name: str, lowest: int, highest: int) -> int:
    """A parameter of the feed; the default is 0 for the cursor and the highest for the limit."""
    value = integer(request, name, lowest if name == "cursor" else highest)
    if not lowest <= value <= highest:
        raise invalid_request(f"{name} must be between {lowest} and {highest}.")
    return int(value)


routes = [Route("/v1/events", Events)]
