"""The recipients' pages: authenticate as the transfer asks for, then download (service.md, Authentication)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from outbound_transfer_sandbox.errors import ApiError
from outbound_transfer_sandbox.models import File
from outbound_transfer_sandbox.service.pickup import Parcel

from .pages import render
from .visit import Endpoint, Visit, begin

_Handler = Callable[[Visit, Parcel], Awaitable[Response]]


def _page(handler: _Handler) -> Endpoint:
    """An endpoint for who has the link. Its cookie goes no further than the link: it opens no other one."""

    async def endpoint(request: Request) -> Response:
        visit = await begin(request, "pickup", _path(request))
        return visit.keep(await handler(visit, visit.sandbox.pickup.open(request.path_params["token"])))

    return endpoint


def _path(request: Request) -> str:
    return f"/pickup/{request.path_params['token']}"


async def parcel_page(visit: Visit, parcel: Parcel) -> Response:
    return _show(visit, parcel)


def _show(visit: Visit, parcel: Parcel, status: int = 200, error: str | None = None) -> Response:
    pickup, values = visit.sandbox.pickup, {"parcel": parcel, "path": visit.path, "error": error}
    if pickup.is_admitted(parcel, visit.token):
        return render(visit, "pickup/files.html", status, **values)
    values |= {
        "question": pickup.question(parcel),
        "code_sent": pickup.awaits_code(parcel),
        "registered": pickup.is_registered(parcel),
        "phone": _hinted(parcel.recipient.phone or ""),
    }
    return render(visit, f"pickup/{parcel.transfer.security}.html", status, **values)


def _hinted(phone: str) -> str:
    """What tells owners their number and nobody else."""
    return f"the number that ends in {phone[-2:]}"


async def answer(visit: Visit, parcel: Parcel) -> Response:
    try:
        visit.token = visit.sandbox.pickup.admit(parcel, visit.text("answer"))
    except ApiError as error:
        return _show(visit, parcel, error.status, error.message)
    return RedirectResponse(visit.path, 303)


async def code(visit: Visit, parcel: Parcel) -> Response:
    try:
        visit.sandbox.pickup.send_code(parcel)
    except ApiError as error:
        return _show(visit, parcel, error.status, error.message)
    return RedirectResponse(visit.path, 303)


async def register(visit: Visit, parcel: Parcel) -> Response:
    try:
        visit.sandbox.pickup.register(parcel, visit.text("password"))
    except ApiError as error:
        return _show(visit, parcel, error.status, error.message)
    return RedirectResponse(visit.path, 303)


async def download(visit: Visit, parcel: Parcel) -> Response:
    file = visit.sandbox.pickup.file(parcel, visit.token, visit.request.path_params["file_id"])
    token = visit.request.path_params["token"]
    return Download(visit, file, lambda: visit.sandbox.pickup.downloaded(token, file))


class Download(FileResponse):
    """Streams a file that no browser shows inline, and tells when its last byte is about to go out."""

    chunk_size = 1 << 18

    def __init__(self, visit: Visit, file: File, on_end: Callable[[], None]) -> None:
        super().__init__(
            visit.sandbox.pickup.content(file),
            filename=file.name,
            media_type=file.content_type,
            headers={"Content-Security-Policy": "sandbox; default-src 'none'"},
        )
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rest: int | None = None

        async def watched(message: Message) -> None:
            nonlocal rest
            if message["type"] == "http.response.start":
                rest = _rest_of_file(message) if scope["method"] == "GET" else None
            elif rest is not None:
                rest -= len(message.get("body", b""))
                if rest == 0:
                    rest = None
                    self._on_end()
            await send(message)

        await super().__call__(scope, receive, watched)


def _rest_of_file(start: Message) -> int | None:
    """How many bytes an answer carries up to a file's end: all of them, or what a resumed download asks for."""
    headers = Headers(raw=start["headers"])
    last, _, size = headers.get("content-range", "").partition("-")[2].partition("/")
    is_end = start["status"] == 200 or (start["status"] == 206 and size.isdigit() and int(last) + 1 == int(size))
    return int(headers["content-length"]) if is_end else None


routes = [
    Route("/pickup/{token}", _page(parcel_page)),
    Route("/pickup/{token}", _page(answer), methods=["POST"]),
    Route("/pickup/{token}/code", _page(code), methods=["POST"]),
    Route("/pickup/{token}/register", _page(register), methods=["POST"]),
    Route("/pickup/{token}/files/{file_id}", _page(download)),
]
