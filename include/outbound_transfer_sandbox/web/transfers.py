"""The transfers that a user sent: list, one of them, cancel (service.md, States and transitions)."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.errors import not_found
from outbound_transfer_sandbox.models import Caller, Transfer
from outbound_transfer_sandbox.service.transfers import STATUSES

from .pages import render
from .visit import Visit, page


def _caller(visit: Visit) -> Caller:
    """The user as the service knows callers; 0 is no key."""
    return Caller(0, visit.user)


async def listing(visit: Visit) -> Response:
    status, cursor = visit.request.query_params.get("status", "all"), visit.request.query_params.get("cursor")
    service = visit.sandbox.transfers
    transfers, following = service.page(_caller(visit), status, cursor, unspecified.PAGE_ROWS)
    return render(
        visit,
        "transfers.html",
        transfers=transfers,
        following=following,
        chosen=status,
        statuses=STATUSES,
        is_first=cursor is None,
    )


def _own(visit: Visit) -> Transfer:
    transfer = visit.sandbox.transfers.retrieve(_caller(visit), visit.request.path_params["transfer_id"])
    if transfer.sent_at is None:
        raise not_found("sent transfer")
    return transfer


async def one(visit: Visit) -> Response:
    return render(visit, "transfer.html", transfer=_own(visit))


async def cancel(visit: Visit) -> Response:
    transfer = visit.sandbox.delivery.cancel(_own(visit).id)
    return RedirectResponse(f"/transfers/{transfer.id}", 303)


routes = [
    Route("/transfers", page(listing)),
    Route("/transfers/{transfer_id}", page(one)),
    Route("/transfers/{transfer_id}/cancel", page(cancel), methods=["POST"]),
]
