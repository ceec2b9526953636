"""The mailbox: every email and text that the service would have sent. It belongs to the sandbox, not to the service."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.errors import not_found

from .pages import render
from .visit import Visit, page


def _reader(visit: Visit) -> str | None:
    """Whose transfers' mail is shown; administrators read all."""
    return None if visit.person and visit.person.administrator else visit.user


async def listing(visit: Visit) -> Response:
    address = visit.request.query_params.get("address", "").strip()
    before = visit.query_number("before", unspecified.FOREVER)
    messages, following = visit.sandbox.mailbox.page(_reader(visit), address or None, before)
    return render(
        visit,
        "mailbox.html",
        messages=messages,
        following=following,
        address=address,
        is_first=before == unspecified.FOREVER,
    )


async def one(visit: Visit) -> Response:
    message = visit.sandbox.mailbox.get(visit.path_number("pk"), _reader(visit))
    if message is None:
        raise not_found("message")
    return render(visit, "message.html", message=message)


routes = [
    Route("/mailbox", page(listing)),
    Route("/mailbox/{pk:int}", page(one)),
]
