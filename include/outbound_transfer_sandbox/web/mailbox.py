"""The mailbox: every message that the service would have sent. The service itself has no such page."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.errors import not_found

from .page_request import PageRequest, page_endpoint
from .rendering import render


def _reader(page: PageRequest) -> str | None:
    """Return the user whose messages are shown, or None for an administrator, who reads all."""
    return None if page.web_user and page.web_user.administrator else page.user


async def listing(page: PageRequest) -> Response:
    address = page.request.query_params.get("address", "").strip()
    before = page.query_number("before", defaults.MAX_TIMESTAMP)
    messages, next_cursor = page.sandbox.mailbox.page(_reader(page), address or None, before)
    return render(
        page,
        "mailbox.html",
        messages=messages,
        next_cursor=next_cursor,
        address=address,
        is_first=before == defaults.MAX_TIMESTAMP,
    )


async def detail(page: PageRequest) -> Response:
    message = page.sandbox.mailbox.get(page.path_number("pk"), _reader(page))
    if message is None:
        raise not_found("message")
    return render(page, "message.html", message=message)


routes = [
    Route("/mailbox", page_endpoint(listing)),
    Route("/mailbox/{pk:int}", page_endpoint(detail)),
]
