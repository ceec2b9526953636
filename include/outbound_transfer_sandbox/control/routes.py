"""The routes of the control API under `/_sandbox`.

Bodies are JSON, and errors have the form of the transfer interface. docs/sandbox.md describes each call.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route

from outbound_transfer_sandbox.api import serializers
from outbound_transfer_sandbox.api.requests import get_parameter, get_sandbox, json_response, read_json
from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.clock import iso
from outbound_transfer_sandbox.domain.errors import invalid_request, not_found
from outbound_transfer_sandbox.domain.models import File, User
from outbound_transfer_sandbox.faults.kinds import AnyFault
from outbound_transfer_sandbox.faults.queue import FaultQueue, TooManyFaults
from outbound_transfer_sandbox.service import settings

from .local_only import LoopbackOnlyMiddleware
from .schemas import (
    ClockAdvance,
    KeyReference,
    NewCredentials,
    NewEvents,
    NewKey,
    PickupRequest,
    TransferChange,
    UserChange,
)


async def get_state(request: Request) -> Response:
    sandbox = get_sandbox(request)
    return json_response(
        {
            "clock": iso(sandbox.context.clock.now()),
            "user": defaults.FIRST_USER,
            "outstanding_transfers": sandbox.transfers.outstanding(),
            "account": sandbox.context.account,
        }
    )


async def reset(request: Request) -> Response:
    transfer_key, event_key = get_sandbox(request).reset()
    _get_faults(request).clear()
    return json_response({"transfer_api_key": transfer_key, "event_api_key": event_key})


async def patch_account(request: Request) -> Response:
    context = get_sandbox(request).context
    changes = await read_json(request, dict[str, Any])
    context.change_account(settings.apply_changes(context.account, changes))
    return json_response(context.account)


async def advance_clock(request: Request) -> Response:
    sandbox = get_sandbox(request)
    sandbox.advance_clock((await read_json(request, ClockAdvance)).advance_seconds)
    return json_response({"clock": iso(sandbox.context.clock.now())})


async def new_key(request: Request) -> Response:
    sandbox, body = get_sandbox(request), await read_json(request, NewKey)
    accounts = sandbox.context.accounts
    user = accounts.user(body.user) or User(body.user, active=True, api_permitted=True, sending_permitted=True)
    change = UserChange(api_permitted=body.api_permitted, sending_permitted=body.sending_permitted)
    accounts.save_user(change.apply_to(user))
    return json_response({"key": sandbox.api_keys.new_transfer_key(body.user)}, 201)


async def revoke_key(request: Request) -> Response:
    if not get_sandbox(request).api_keys.revoke_transfer_key((await read_json(request, KeyReference)).key):
        raise not_found("key")
    return Response(status_code=204)


async def patch_user(request: Request) -> Response:
    accounts = get_sandbox(request).context.accounts
    user = accounts.user(request.path_params["user"])
    if user is None:
        raise not_found("user")
    user = (await read_json(request, UserChange)).apply_to(user)
    accounts.save_user(user)
    return json_response(user)


async def new_event_key(request: Request) -> Response:
    return json_response({"key": get_sandbox(request).api_keys.new_event_key()}, 201)


async def new_sign_in(request: Request) -> Response:
    """Let a user, who may be new, sign in to the web application."""
    body = await read_json(request, NewCredentials)
    get_sandbox(request).users.set_credentials(body.user, body.password, administrator=body.administrator)
    return Response(status_code=204)


async def list_messages(request: Request) -> Response:
    """Return all messages, oldest first, or those to `address`."""
    messages = get_sandbox(request).mailbox.all(get_parameter(request, "address"))
    return json_response(
        [{**msgspec.to_builtins(message), "timestamp": iso(message.timestamp)} for message in messages]
    )


async def get_transfer(request: Request) -> Response:
    """Return any user's transfer, draft or sent, as the API does."""
    return json_response(serializers.transfer(get_sandbox(request).transfers.find(request.path_params["transfer_id"])))


async def pick_up(request: Request) -> Response:
    email = (await read_json(request, PickupRequest)).email
    return json_response(
        serializers.transfer(get_sandbox(request).lifecycle.pick_up(request.path_params["transfer_id"], email))
    )


async def cancel(request: Request) -> Response:
    return json_response(
        serializers.transfer(get_sandbox(request).lifecycle.cancel(request.path_params["transfer_id"]))
    )


async def patch_transfer(request: Request) -> Response:
    change, delivery = await read_json(request, TransferChange), get_sandbox(request).lifecycle
    transfer_id = request.path_params["transfer_id"]
    if change.stored_status is not None:
        delivery.override_status(transfer_id, change.stored_status)
    if change.expires_in_seconds is not None:
        delivery.override_expiry(transfer_id, change.expires_in_seconds)
    return json_response(serializers.transfer(get_sandbox(request).transfers.find(transfer_id)))


async def add_events(request: Request) -> Response:
    body, context = await read_json(request, NewEvents), get_sandbox(request).context
    data = msgspec.json.encode(body.data).decode()
    context.activity.add_events(body.count, body.type, context.clock.now(), data)
    return json_response({"count": body.count, "last_event_id": context.activity.last_event_id()}, 201)


def _rows_response(rows: list[dict[str, Any]]) -> Response:
    return json_response([{**row, "timestamp": iso(row["timestamp"])} for row in rows])


async def list_ledger(request: Request) -> Response:
    return _rows_response(get_sandbox(request).context.activity.ledger())


async def list_requests(request: Request) -> Response:
    return _rows_response(get_sandbox(request).context.activity.requests())


async def list_feed_calls(request: Request) -> Response:
    return _rows_response(get_sandbox(request).context.activity.feed_calls())


def _get_faults(request: Request) -> FaultQueue:
    faults: FaultQueue = request.app.state.faults
    return faults


async def plan_faults(request: Request) -> Response:
    """Append faults to the queue, all or none."""
    planned = await read_json(request, list[AnyFault])
    try:
        _get_faults(request).plan(planned)
    except TooManyFaults as error:
        raise invalid_request(str(error)) from None
    return json_response({"planned": len(planned)}, 201)


async def list_faults(request: Request) -> Response:
    return json_response(_get_faults(request).to_list())


async def clear_faults(request: Request) -> Response:
    _get_faults(request).clear()
    return Response(status_code=204)


async def release_faults(request: Request) -> Response:
    return json_response({"released": _get_faults(request).release()})


def _find_file(request: Request) -> File:
    transfer = get_sandbox(request).transfers.find(request.path_params["transfer_id"])
    for file in transfer.files:
        if file.id == request.path_params["file_id"]:
            return file
    raise not_found("file")


async def get_stored_file(request: Request) -> Response:
    """Return a file's record with its stored type, its size on disk and the SHA-256 of its bytes."""
    file = _find_file(request)
    path = get_sandbox(request).context.blobs.path(file.id)
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return json_response(
        {**msgspec.to_builtins(file), "stored_size": path.stat().st_size, "sha256": digest.hexdigest()}
    )


async def get_stored_content(request: Request) -> Response:
    file = _find_file(request)
    return FileResponse(get_sandbox(request).context.blobs.path(file.id), media_type="application/octet-stream")


mount = Mount(
    "/_sandbox",
    routes=[
        Route("/state", get_state),
        Route("/reset", reset, methods=["POST"]),
        Route("/account", patch_account, methods=["PATCH"]),
        Route("/clock", advance_clock, methods=["POST"]),
        Route("/keys", new_key, methods=["POST"]),
        Route("/keys/revoke", revoke_key, methods=["POST"]),
        Route("/users/{user}", patch_user, methods=["PATCH"]),
        Route("/sign-ins", new_sign_in, methods=["POST"]),
        Route("/mailbox", list_messages),
        Route("/event-key", new_event_key, methods=["POST"]),
        Route("/transfers/{transfer_id}", get_transfer),
        Route("/transfers/{transfer_id}", patch_transfer, methods=["PATCH"]),
        Route("/transfers/{transfer_id}/pickup", pick_up, methods=["POST"]),
        Route("/transfers/{transfer_id}/cancel", cancel, methods=["POST"]),
        Route("/transfers/{transfer_id}/files/{file_id}", get_stored_file),
        Route("/transfers/{transfer_id}/files/{file_id}/content", get_stored_content),
        Route("/events", add_events, methods=["POST"]),
        Route("/ledger", list_ledger),
        Route("/requests", list_requests),
        Route("/feed-calls", list_feed_calls),
        Route("/faults", plan_faults, methods=["POST"]),
        Route("/faults", list_faults),
        Route("/faults", clear_faults, methods=["DELETE"]),
        Route("/faults/release", release_faults, methods=["POST"]),
    ],
    middleware=[Middleware(LoopbackOnlyMiddleware)],
)
