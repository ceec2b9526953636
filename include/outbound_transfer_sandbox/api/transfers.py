"""`/v1/transfers` (service-api.md, R22 to R29 and R35 to R38)."""

from __future__ import annotations

import asyncio
from decimal import Decimal

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.models import Caller
from outbound_transfer_sandbox.service.validation import NewTransfer

from . import serializers
from .requests import get_integer, get_parameter, get_sandbox, json_response, read_json


def authenticate(request: Request) -> Caller:
    """Return the caller and count the request. Raises what `ApiKeyService.authenticate_caller` raises."""
    caller = get_sandbox(request).api_keys.authenticate_caller(request.headers.getlist("authorization"))
    request.state.counted_for = caller.key
    return caller


class TransferCollection(HTTPEndpoint):
    async def post(self, request: Request) -> Response:
        caller = authenticate(request)
        transfer = get_sandbox(request).transfers.create(caller, await read_json(request, NewTransfer))
        return json_response(serializers.transfer(transfer), 201, {"Location": f"/v1/transfers/{transfer.id}"})

    async def get(self, request: Request) -> Response:
        caller = authenticate(request)
        limit = int(max(Decimal(1), min(get_integer(request, "limit", 25), Decimal(100))))
        status = get_parameter(request, "status")
        cursor = get_parameter(request, "cursor")
        page, next_cursor = get_sandbox(request).transfers.page(
            caller, "all" if status is None else status, cursor, limit
        )
        return json_response(
            {"data": [serializers.transfer_summary(transfer) for transfer in page], "next_cursor": next_cursor}
        )


class TransferResource(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        transfer = get_sandbox(request).transfers.retrieve(authenticate(request), request.path_params["transfer_id"])
        return json_response(serializers.transfer(transfer))

    async def delete(self, request: Request) -> Response:
        get_sandbox(request).transfers.discard(authenticate(request), request.path_params["transfer_id"])
        return Response(status_code=204)


class TransferSend(HTTPEndpoint):
    async def post(self, request: Request) -> Response:
        transfer_id = request.path_params["transfer_id"]
        sandbox = get_sandbox(request)
        with sandbox.sends.open_window(transfer_id) as window:
            caller = authenticate(request)
            # Concurrent sends may arrive before and after the decision.
            await asyncio.sleep(defaults.SEND_DURATION_SECONDS / 2)
            transfer = sandbox.transfers.send(caller, transfer_id, window)
            await asyncio.sleep(defaults.SEND_DURATION_SECONDS / 2)
        return json_response(serializers.transfer(transfer))


routes = [
    Route("/v1/transfers", TransferCollection),
    Route("/v1/transfers/{transfer_id}", TransferResource),
    Route("/v1/transfers/{transfer_id}/send", TransferSend),
]
