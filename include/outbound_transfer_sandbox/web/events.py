"""Account settings, security, events: monitoring, its key, the feed usage log (service.md, Event feed)."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox import unspecified

from .pages import render
from .visit import Visit, page, show_once, shown_once

PATH = "/account/security/events"


async def usage(visit: Visit) -> Response:
    before = visit.query_number("before", unspecified.FOREVER)
    calls, following = visit.sandbox.feed.usage(before)
    return render(
        visit,
        "events.html",
        calls=calls,
        following=following,
        is_first=before == unspecified.FOREVER,
        monitored=visit.sandbox.access.is_monitored(),
        secret=shown_once(visit),
    )


async def new_key(visit: Visit) -> Response:
    show_once(visit, visit.sandbox.access.new_event_key())
    return RedirectResponse(PATH, 303)


async def end(visit: Visit) -> Response:
    visit.sandbox.access.end_monitoring()
    return RedirectResponse(PATH, 303)


routes = [
    Route(PATH, page(usage, administrator=True)),
    Route(f"{PATH}/key", page(new_key, administrator=True), methods=["POST"]),
    Route(f"{PATH}/end", page(end, administrator=True), methods=["POST"]),
]
