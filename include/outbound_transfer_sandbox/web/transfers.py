"""The transfers that a user sent: list, details, cancel (service-api.md, R18)."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.errors import not_found
from outbound_transfer_sandbox.domain.models import Caller, Transfer
from outbound_transfer_sandbox.service.transfers import STATUS_FILTERS

from .page_request import PageRequest, page_endpoint
from .rendering import render


def _caller(page: PageRequest) -> Caller:
    """Return the user as a caller without a key."""
    return Caller(0, page.user)


async def listing(page: PageRequest) -> Response:
    status, cursor = page.request.query_params.get("status", "all"), page.request.query_params.get("cursor")
    service = page.sandbox.transfers
    transfers, next_cursor = service.page(_caller(page), status, cursor, defaults.ROWS_PER_PAGE)
    return render(
        page,
        "transfers.html",
        transfers=transfers,
        next_cursor=next_cursor,
        chosen=status,
        statuses=STATUS_FILTERS,
        is_first=cursor is None,
    )


def _own(page: PageRequest) -> Transfer:
    transfer = page.sandbox.transfers.retrieve(_caller(page), page.request.path_params["transfer_id"])
    if transfer.sent_at is None:
        raise not_found("sent transfer")
    return transfer


async def detail(page: PageRequest) -> Response:
    return render(page, "transfer.html", transfer=_own(page))


async def cancel(page: PageRequest) -> Response:
    transfer = page.sandbox.lifecycle.cancel(_own(page).id)
    return RedirectResponse(f"/transfers/{transfer.id}", 303)


routes = [
    Route("/transfers", page_endpoint(listing)),
    Route("/transfers/{transfer_id}", page_endpoint(detail)),
    Route("/transfers/{transfer_id}/cancel", page_endpoint(cancel), methods=["POST"]),
]
