"""The control API under `/_sandbox`: what only an administrator, a recipient or time could do. JSON, loopback only.

Errors have the Transfer interface's shape, with 403 forbidden for anybody who is not on this machine. All calls:

GET /state                          the clock, the account's settings, how many transfers are outstanding
POST /reset                         forgets everything but the first keys, which it returns
PATCH /account                      changes settings of the account
POST /clock                         `advance_seconds`: moves the service's time forward
POST /keys                          a new transfer key of `user`, with grants that are given
POST /keys/revoke                   revokes the transfer key `key`
PATCH /users/{user}                 `active`, `api_permitted`, `sending_permitted`
POST /sign-ins                      lets `user` into the web application with `password`, perhaps as `administrator`
GET /mailbox                        every email and text that went out, oldest first; `?address=` picks one reader's
POST /event-key                     a new event key, which revokes the old
GET /transfers/{transfer_id}        any user's transfer, draft or sent
PATCH /transfers/{transfer_id}      `stored_status` makes it an old record, `expires_in_seconds` moves its end
POST /transfers/{transfer_id}/pickup     the recipient `email` downloads every file
POST /transfers/{transfer_id}/cancel     cancels it, as in the web application
GET /transfers/{transfer_id}/files/{file_id}            its record, stored size and SHA-256
GET /transfers/{transfer_id}/files/{file_id}/content    its bytes
POST /events                        appends `count` synthetic events of `type` with `data`
GET /ledger                         what was billed and emailed
GET /requests                       the calls of the API and their answers
GET /feed-calls                     the feed usage log
POST /faults                        plans faults (see `fault_kinds`), after those that are planned
GET /faults                         which were met and which not
DELETE /faults                      forgets them
POST /faults/release                lets calls go on that a fault holds up
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from . import hosts, unspecified
from .api import render
from .api.http import answer, parameter, read_json, sandbox_of
from .clock import iso
from .errors import ApiError, not_found
from .fault_kinds import AnyFault
from .faults import Faults
from .models import File, User
from .service import settings
from .service.drafts import Text


class LocalOnly:
    """Answers only clients of this machine that mean it: no page of another site, nobody whom a proxy asks for.

    The peer and Host must be loopback: Host keeps out web pages that rebind their name to 127.0.0.1. A proxy beside us
    passes for both, so what it adds tells it; HTTP/1.0 is what the commonest one speaks that adds nothing.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, client = Headers(scope=scope), scope.get("client")
        is_here = hosts.is_loopback(client[0] if client else None) and hosts.is_loopback(hosts.host(headers))
        is_sent_on = hosts.is_forwarded(headers) or scope["http_version"] == "1.0" or len(headers.getlist("host")) > 1
        if not is_here or is_sent_on or hosts.is_from_another_site(headers):
            raise ApiError(403, "forbidden", "The control API answers programs of this machine only.")
        await self._app(scope, receive, send)


async def state(request: Request) -> Response:
    sandbox = sandbox_of(request)
    return answer(
        {
            "clock": iso(sandbox.context.clock.now()),
            "user": unspecified.FIRST_USER,
            "outstanding_transfers": sandbox.transfers.outstanding(),
            "account": sandbox.context.account,
        }
    )


async def reset(request: Request) -> Response:
    transfer_key, event_key = sandbox_of(request).reset()
    _faults_of(request).clear()
    return answer({"transfer_api_key": transfer_key, "event_api_key": event_key})


async def patch_account(request: Request) -> Response:
    context = sandbox_of(request).context
    changes = await read_json(request, dict[str, Any])
    context.change_account(settings.changed(context.account, changes))
    return answer(context.account)


class Advance(Struct, forbid_unknown_fields=True):
    advance_seconds: Annotated[float, Meta(ge=0)]


async def advance_clock(request: Request) -> Response:
    sandbox = sandbox_of(request)
    sandbox.advance_clock((await read_json(request, Advance)).advance_seconds)
    return answer({"clock": iso(sandbox.context.clock.now())})


Name = Annotated[Text, Meta(min_length=1, max_length=unspecified.MAX_ADDRESS)]


class UserChange(Struct, forbid_unknown_fields=True):
    """Grants that are left out stay as they are; a new user has them all."""

    active: bool | None = None
    api_permitted: bool | None = None
    sending_permitted: bool | None = None

    def applied(self, user: User) -> User:
        grants = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(user, **grants)


class NewKey(Struct, forbid_unknown_fields=True):
    user: Name = unspecified.FIRST_USER
    api_permitted: bool | None = None
    sending_permitted: bool | None = None


async def new_key(request: Request) -> Response:
    sandbox, body = sandbox_of(request), await read_json(request, NewKey)
    accounts = sandbox.context.accounts
    sandbox.context.space.check_records(3)
    user = accounts.user(body.user) or User(body.user, active=True, api_permitted=True, sending_permitted=True)
    change = UserChange(api_permitted=body.api_permitted, sending_permitted=body.sending_permitted)
    accounts.save_user(change.applied(user))
    return answer({"key": sandbox.access.new_transfer_key(body.user)}, 201)


class Key(Struct, forbid_unknown_fields=True):
    key: str


async def revoke_key(request: Request) -> Response:
    if not sandbox_of(request).access.revoke_transfer_key((await read_json(request, Key)).key):
        raise not_found("key")
    return Response(status_code=204)


async def patch_user(request: Request) -> Response:
    accounts = sandbox_of(request).context.accounts
    user = accounts.user(request.path_params["user"])
    if user is None:
        raise not_found("user")
    user = (await read_json(request, UserChange)).applied(user)
    accounts.save_user(user)
    return answer(user)


async def new_event_key(request: Request) -> Response:
    return answer({"key": sandbox_of(request).access.new_event_key()}, 201)


class SignIn(Struct, forbid_unknown_fields=True):
    user: Name
    password: Annotated[str, Meta(min_length=1, max_length=1000)]
    administrator: bool = False


async def new_sign_in(request: Request) -> Response:
    """Lets a user, who may be new, sign in to the web application."""
    body = await read_json(request, SignIn)
    sandbox_of(request).people.admit(body.user, body.password, administrator=body.administrator)
    return Response(status_code=204)


async def mailbox(request: Request) -> Response:
    """Every email and text that went out, oldest first; `address` picks one reader's."""
    messages = sandbox_of(request).mailbox.all(parameter(request, "address"))
    return answer([{**msgspec.to_builtins(message), "at": iso(message.at)} for message in messages])


async def transfer(request: Request) -> Response:
    """Any user's transfer, draft or sent, as the API retrieves it."""
    return answer(render.transfer(sandbox_of(request).transfers.find(request.path_params["transfer_id"])))


class PickUp(Struct, forbid_unknown_fields=True):
    email: str


async def pick_up(request: Request) -> Response:
    email = (await read_json(request, PickUp)).email
    return answer(render.transfer(sandbox_of(request).delivery.pick_up(request.path_params["transfer_id"], email)))


async def cancel(request: Request) -> Response:
    return answer(render.transfer(sandbox_of(request).delivery.cancel(request.path_params["transfer_id"])))


class TransferChange(Struct, forbid_unknown_fields=True):
    stored_status: Annotated[Text, Meta(min_length=1, max_length=100)] | None = None
    expires_in_seconds: Annotated[float, Meta(ge=-(10**9), le=10**9)] | None = None


async def patch_transfer(request: Request) -> Response:
    change, delivery = await read_json(request, TransferChange), sandbox_of(request).delivery
    transfer_id = request.path_params["transfer_id"]
    if change.stored_status is not None:
        delivery.rewrite_status(transfer_id, change.stored_status)
    if change.expires_in_seconds is not None:
        delivery.rewrite_expiry(transfer_id, change.expires_in_seconds)
    return answer(render.transfer(sandbox_of(request).transfers.find(transfer_id)))


_EVENT = 30  # bytes that a synthetic event takes beside its texts


class NewEvents(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=unspecified.SYNTHETIC_EVENTS_PER_CALL)] = 1
    type: str = "transfer_sent"
    data: dict[str, Any] = field(default_factory=lambda: {"synthetic": True})


async def add_events(request: Request) -> Response:
    body, context = await read_json(request, NewEvents), sandbox_of(request).context
    data = msgspec.json.encode(body.data).decode()
    context.space.check_records(0, body.count * (_EVENT + len(body.type.encode()) + len(data)))
    context.journal.add_events(body.count, body.type, context.clock.now(), data)
    return answer({"count": body.count, "last_event_id": context.journal.last_event_id()}, 201)


def _dated(rows: list[dict[str, Any]]) -> Response:
    return answer([{**row, "at": iso(row["at"])} for row in rows])


async def ledger(request: Request) -> Response:
    return _dated(sandbox_of(request).context.journal.ledger())


async def requests(request: Request) -> Response:
    return _dated(sandbox_of(request).context.journal.requests())


async def feed_calls(request: Request) -> Response:
    return _dated(sandbox_of(request).context.journal.feed_calls())


def _faults_of(request: Request) -> Faults:
    faults: Faults = request.app.state.faults
    return faults


async def plan_faults(request: Request) -> Response:
    """Appends to the queue, all of them or none."""
    planned = await read_json(request, list[AnyFault])
    _faults_of(request).plan(planned)
    return answer({"planned": len(planned)}, 201)


async def faults(request: Request) -> Response:
    return answer(_faults_of(request).account())


async def clear_faults(request: Request) -> Response:
    _faults_of(request).clear()
    return Response(status_code=204)


async def release(request: Request) -> Response:
    return answer({"released": _faults_of(request).release()})


def _stored_file(request: Request) -> File:
    transfer = sandbox_of(request).transfers.find(request.path_params["transfer_id"])
    for file in transfer.files:
        if file.id == request.path_params["file_id"]:
            return file
    raise not_found("file")


async def stored_file(request: Request) -> Response:
    """The record of a file with its stored type and the SHA-256 of its bytes, computed now."""
    file = _stored_file(request)
    path = sandbox_of(request).context.blobs.path(file.id)
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return answer({**msgspec.to_builtins(file), "stored_size": path.stat().st_size, "sha256": digest.hexdigest()})


async def stored_content(request: Request) -> Response:
    file = _stored_file(request)
    return FileResponse(sandbox_of(request).context.blobs.path(file.id), media_type="application/octet-stream")


mount = Mount(
    "/_sandbox",
    routes=[
        Route("/state", state),
        Route("/reset", reset, methods=["POST"]),
        Route("/account", patch_account, methods=["PATCH"]),
        Route("/clock", advance_clock, methods=["POST"]),
        Route("/keys", new_key, methods=["POST"]),
        Route("/keys/revoke", revoke_key, methods=["POST"]),
        Route("/users/{user}", patch_user, methods=["PATCH"]),
        Route("/sign-ins", new_sign_in, methods=["POST"]),
        Route("/mailbox", mailbox),
        Route("/event-key", new_event_key, methods=["POST"]),
        Route("/transfers/{transfer_id}", transfer),
        Route("/transfers/{transfer_id}", patch_transfer, methods=["PATCH"]),
        Route("/transfers/{transfer_id}/pickup", pick_up, methods=["POST"]),
        Route("/transfers/{transfer_id}/cancel", cancel, methods=["POST"]),
        Route("/transfers/{transfer_id}/files/{file_id}", stored_file),
        Route("/transfers/{transfer_id}/files/{file_id}/content", stored_content),
        Route("/events", add_events, methods=["POST"]),
        Route("/ledger", ledger),
        Route("/requests", requests),
        Route("/feed-calls", feed_calls),
        Route("/faults", plan_faults, methods=["POST"]),
        Route("/faults", faults),
        Route("/faults", clear_faults, methods=["DELETE"]),
        Route("/faults/release", release, methods=["POST"]),
    ],
    middleware=[Middleware(LocalOnly)],
)
