"""Monitoring: the event key and the feed usage log (service-api.md, R9 and R16)."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain import defaults

from .page_request import PageRequest, flash_secret, page_endpoint, pop_flash_secret
from .rendering import render

PATH = "/account/security/events"


async def usage(page: PageRequest) -> Response:
    before = page.query_number("before", defaults.MAX_TIMESTAMP)
    calls, next_cursor = page.sandbox.feed.usage(before)
    return render(
        page,
        "events.html",
        calls=calls,
        next_cursor=next_cursor,
        is_first=before == defaults.MAX_TIMESTAMP,
        monitored=page.sandbox.api_keys.is_monitored(),
        secret=pop_flash_secret(page),
    )


async def new_key(page: PageRequest) -> Response:
    flash_secret(page, page.sandbox.api_keys.new_event_key())
    return RedirectResponse(PATH, 303)


async def stop_monitoring(page: PageRequest) -> Response:
    page.sandbox.api_keys.stop_monitoring()
    return RedirectResponse(PATH, 303)


routes = [
    Route(PATH, page_endpoint(usage, administrator=True)),
    Route(f"{PATH}/key", page_endpoint(new_key, administrator=True), methods=["POST"]),
    Route(f"{PATH}/end", page_endpoint(stop_monitoring, administrator=True), methods=["POST"]),
]
