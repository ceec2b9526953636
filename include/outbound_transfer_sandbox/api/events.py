"""`GET /v1/events` (service-api.md, R40 to R49)."""

from __future__ import annotations

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_request

from . import serializers
from .requests import get_integer, get_sandbox


class EventFeed(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        feed = get_sandbox(request).feed
        try:
            get_sandbox(request).api_keys.check_feed_key(request.headers.getlist("authorization"))
            page = feed.read(
                _bounded_int(request, "cursor", 0, defaults.MAX_TIMESTAMP), _bounded_int(request, "limit", 1, 1000)
            )
        except ApiError as error:
            feed.log(error.status, 0)
            raise
        feed.log(200, len(page.events))
        headers = {"X-Next-Cursor": str(page.next_cursor), "X-Has-More": "true" if page.has_more else "false"}
        return Response(serializers.events(page.events), headers=headers, media_type="application/x-ndjson")


def _bounded_int(request: Request, name: str, minimum: int, maximum: int) -> int:
    """Return a parameter of the feed. The default is 0 for the cursor and the maximum for the limit."""
    value = get_integer(request, name, minimum if name == "cursor" else maximum)
    if not minimum <= value <= maximum:
        raise invalid_request(f"{name} must be between {minimum} and {maximum}.")
    return int(value)


routes = [Route("/v1/events", EventFeed)]
