"""Profile, integrations, API keys (service-api.md, R6)."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain.errors import ApiError

from .page_request import PageRequest, flash_secret, page_endpoint, pop_flash_secret
from .rendering import render

PATH = "/profile/integrations/api-keys"


async def listing(page: PageRequest) -> Response:
    return _render(page, secret=pop_flash_secret(page))


def _render(page: PageRequest, status: int = 200, *, secret: str | None = None, error: str | None = None) -> Response:
    values = {"keys": page.sandbox.api_keys.list_keys(page.user), "account": page.sandbox.context.account}
    return render(page, "keys.html", status, **values, secret=secret, error=error)


async def create(page: PageRequest) -> Response:
    label = page.form_value("label").strip()[:100]
    try:
        flash_secret(page, page.sandbox.api_keys.create_key_for(page.user, label))
    except ApiError as error:
        return _render(page, error.status, error=error.message)
    return RedirectResponse(PATH, 303)


async def revoke(page: PageRequest) -> Response:
    page.sandbox.api_keys.revoke_own_key(page.user, page.path_number("key"))
    return RedirectResponse(PATH, 303)


routes = [
    Route(PATH, page_endpoint(listing)),
    Route(PATH, page_endpoint(create), methods=["POST"]),
    Route(f"{PATH}/{{key:int}}/revoke", page_endpoint(revoke), methods=["POST"]),
]
