"""Profile, integrations, API keys (service.md, Authentication, Transfer interface)."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.errors import ApiError

from .pages import render
from .visit import Visit, page, show_once, shown_once

PATH = "/profile/integrations/api-keys"


async def listing(visit: Visit) -> Response:
    return _page(visit, secret=shown_once(visit))


def _page(visit: Visit, status: int = 200, *, secret: str | None = None, error: str | None = None) -> Response:
    values = {"keys": visit.sandbox.access.own_keys(visit.user), "account": visit.sandbox.context.account}
    return render(visit, "keys.html", status, **values, secret=secret, error=error)


async def create(visit: Visit) -> Response:
    label = visit.text("label").strip()[:100]
    try:
        show_once(visit, visit.sandbox.access.make_own_key(visit.user, label))
    except ApiError as error:
        return _page(visit, error.status, error=error.message)
    return RedirectResponse(PATH, 303)


async def revoke(visit: Visit) -> Response:
    visit.sandbox.access.revoke_own_key(visit.user, visit.path_number("key"))
    return RedirectResponse(PATH, 303)


routes = [
    Route(PATH, page(listing)),
    Route(PATH, page(create), methods=["POST"]),
    Route(f"{PATH}/{{key:int}}/revoke", page(revoke), methods=["POST"]),
]
