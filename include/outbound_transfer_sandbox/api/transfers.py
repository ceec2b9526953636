"""`/v1/transfers` (service.md, Endpoints)."""

from __future__ import annotations

import asyncio
from decimal import Decimal

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.models import Caller
from outbound_transfer_sandbox.service.drafts import NewTransfer

from . import render
from .http import answer, integer, parameter, read_json, sandbox_of


def caller_of(request: Request) -> Caller:
    """Who calls; from here on the request counts. Raises what `Access.transfer_caller` raises."""
    caller = sandbox_of(request).access.transfer_caller(request.headers.getlist("authorization"))
    request.state.counted_for = caller.key
    return caller


class Transfers(HTTPEndpoint):
    async def post(self, request: Request) -> Response:
        caller = caller_of(request)
        transfer = sandbox_of(request).transfers.create(caller, await read_json(request, NewTransfer))
        return answer(render.transfer(transfer), 201, {"Location": f"/v1/transfers/{transfer.id}"})

    async def get(self, request: Request) -> Response:
        caller = caller_of(request)
        limit = int(max(Decimal(1), min(integer(request, "limit", 25), Decimal(100))))
        status = parameter(request, "status")
        cursor = parameter(request, "cursor")
        page, following = sandbox_of(request).transfers.page(caller, "all" if status is None else status, cursor, limit)
        return answer({"data": [render.listed(transfer) for transfer in page], "next_cursor": following})


class Transfer(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        transfer = sandbox_of(request).transfers.retrieve(caller_of(request), request.path_params["transfer_id"])
        return answer(render.transfer(transfer))

    async def delete(self, request: Request) -> Response:
        sandbox_of(request).transfers.discard(caller_of(request), request.path_params["transfer_id"])
        return Response(status_code=204)


class Send(HTTPEndpoint):
    async def post(self, request: Request) -> Response:
        transfer_id = request.path_params["transfer_id"]
        sandbox = sandbox_of(request)
        with sandbox.sends.span(transfer_id) as span:
            caller = caller_of(request)
            # Concurrent sends arrive meanwhile, before and after the decision.
            await asyncio.sleep(unspecified.SEND_SECONDS / 2)
            transfer = sandbox.transfers.send(caller, transfer_id, span)
            await asyncio.sleep(unspecified.SEND_SECONDS / 2)
        return answer(render.transfer(transfer))


routes = [
    Route("/v1/transfers", Transfers),
    Route("/v1/transfers/{transfer_id}", Transfer),
    Route("/v1/transfers/{transfer_id}/send", Send),
]
