"""The recipients' pages: authenticate, then download (service-api.md, R10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.domain.models import File
from outbound_transfer_sandbox.service.pickup import PickupLink

from .page_request import Endpoint, PageRequest, load
from .rendering import render

_Handler = Callable[[PageRequest, PickupLink], Awaitable[Response]]


def _link_endpoint(handler: _Handler) -> Endpoint:
    """Return an endpoint for a pickup link. The cookie's path is the link: it is valid for no other one."""

    async def endpoint(request: Request) -> Response:
        page = await load(request, "pickup", _path(request))
        return page.with_cookie(await handler(page, page.sandbox.pickup.resolve_link(request.path_params["token"])))

    return endpoint


def _path(request: Request) -> str:
    return f"/pickup/{request.path_params['token']}"


async def show(page: PageRequest, link: PickupLink) -> Response:
    return _render(page, link)


def _render(page: PageRequest, link: PickupLink, status: int = 200, error: str | None = None) -> Response:
    pickup, values = page.sandbox.pickup, {"link": link, "path": page.path, "error": error}
    if pickup.is_authenticated(link, page.token):
        return render(page, "pickup/files.html", status, **values)
    values |= {
        "question": pickup.question(link),
        "code_sent": pickup.has_pending_code(link),
        "registered": pickup.is_registered(link),
        "phone": _phone_hint(link.recipient.phone or ""),
    }
    return render(page, f"pickup/{link.transfer.security}.html", status, **values)


def _phone_hint(phone: str) -> str:
    """Return a hint that only the owner of the number understands."""
    return f"the number that ends in {phone[-2:]}"


async def submit(page: PageRequest, link: PickupLink) -> Response:
    try:
        page.token = page.sandbox.pickup.authenticate(link, page.form_value("answer"))
    except ApiError as error:
        return _render(page, link, error.status, error.message)
    return RedirectResponse(page.path, 303)


async def send_code(page: PageRequest, link: PickupLink) -> Response:
    try:
        page.sandbox.pickup.send_code(link)
    except ApiError as error:
        return _render(page, link, error.status, error.message)
    return RedirectResponse(page.path, 303)


async def register(page: PageRequest, link: PickupLink) -> Response:
    try:
        page.sandbox.pickup.register(link, page.form_value("password"))
    except ApiError as error:
        return _render(page, link, error.status, error.message)
    return RedirectResponse(page.path, 303)


async def download(page: PageRequest, link: PickupLink) -> Response:
    file = page.sandbox.pickup.file(link, page.token, page.request.path_params["file_id"])
    token = page.request.path_params["token"]
    return TrackedDownload(page, file, lambda: page.sandbox.pickup.record_download(token, file))


class TrackedDownload(FileResponse):
    """A file that browsers download and do not show. Calls `on_last_byte` before it sends the last byte."""

    chunk_size = 1 << 18

    def __init__(self, page: PageRequest, file: File, on_last_byte: Callable[[], None]) -> None:
        super().__init__(
            page.sandbox.pickup.file_path(file),
            filename=file.name,
            media_type=file.content_type,
            headers={"Content-Security-Policy": "sandbox; default-src 'none'"},
        )
        self._on_last_byte = on_last_byte

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        remaining: int | None = None

        async def count_bytes(message: Message) -> None:
            nonlocal remaining
            if message["type"] == "http.response.start":
                remaining = _remaining_bytes(message) if scope["method"] == "GET" else None
            elif remaining is not None:
                remaining -= len(message.get("body", b""))
                if remaining == 0:
                    remaining = None
                    self._on_last_byte()
            await send(message)

        await super().__call__(scope, receive, count_bytes)


def _remaining_bytes(start: Message) -> int | None:
    """Return the bytes that the response sends up to the file's end, or None if it stops before."""
    headers = Headers(raw=start["headers"])
    last, _, size = headers.get("content-range", "").partition("-")[2].partition("/")
    is_end = start["status"] == 200 or (start["status"] == 206 and size.isdigit() and int(last) + 1 == int(size))
    return int(headers["content-length"]) if is_end else None


routes = [
    Route("/pickup/{token}", _link_endpoint(show)),
    Route("/pickup/{token}", _link_endpoint(submit), methods=["POST"]),
    Route("/pickup/{token}/code", _link_endpoint(send_code), methods=["POST"]),
    Route("/pickup/{token}/register", _link_endpoint(register), methods=["POST"]),
    Route("/pickup/{token}/files/{file_id}", _link_endpoint(download)),
]
