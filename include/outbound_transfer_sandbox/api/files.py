"""`/v1/transfers/{transfer_id}/files` (service-api.md, R30 to R34)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.domain.models import File
from outbound_transfer_sandbox.domain.sizes import MEGABYTE

from . import serializers
from .requests import get_header, get_sandbox, json_response
from .transfers import authenticate


class FileCollection(HTTPEndpoint):
    async def post(self, request: Request) -> Response:
        sandbox, caller, transfer_id = get_sandbox(request), authenticate(request), request.path_params["transfer_id"]
        # A chunked body has no Content-Length. The server refuses a request that has both.
        length, disposition = get_header(request, "Content-Length"), get_header(request, "Content-Disposition")
        accepted = sandbox.files.accept(caller, transfer_id, length, disposition)
        if accepted.existing:
            return json_response(serializers.file(accepted.existing))
        upload = sandbox.context.blobs.start_upload()
        try:
            await _receive(request.receive, upload.write, accepted.size)
            file, attached = sandbox.files.attach(caller, transfer_id, accepted, upload)
        finally:
            upload.discard()
        return _attached(transfer_id, file) if attached else json_response(serializers.file(file))

    async def get(self, request: Request) -> Response:
        files = get_sandbox(request).files.list_files(authenticate(request), request.path_params["transfer_id"])
        return json_response({"data": [serializers.file(file) for file in files]})


def _attached(transfer_id: str, file: File) -> Response:
    return json_response(serializers.file(file), 201, {"Location": f"/v1/transfers/{transfer_id}/files/{file.id}"})


async def _receive(receive: Receive, write: Callable[[list[bytes]], None], size: int) -> None:
    """Pass the body to `write`. Raises 500 internal_error if it ends or stalls before `size` bytes.

    Each megabyte is written in a thread while the next one is received, so that a slow disk does not block other
    requests. The last one, which is all of a small file, is written without a thread.
    """
    loop, missing, more = asyncio.get_running_loop(), size, True
    writing: asyncio.Future[None] | None = None
    try:
        while more:
            chunks, more = await asyncio.wait_for(_read_megabyte(receive), defaults.UPLOAD_STALL_SECONDS)
            missing -= sum(map(len, chunks))
            if writing:
                await writing
            if more:
                writing = loop.run_in_executor(None, write, chunks)
            else:
                write(chunks)
    except TimeoutError:
        pass  # `missing` is not 0
    finally:
        if writing:
            await writing  # no thread may be left when this returns
    if missing:
        raise ApiError(500, "internal_error", "The upload was cut off; nothing is attached.", {"Connection": "close"})


async def _read_megabyte(receive: Receive) -> tuple[list[bytes], bool]:
    """Return the next chunks of the body, a megabyte or more in all, and whether more follows."""
    chunks, size, more = [], 0, True
    while more and size < MEGABYTE:
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        more = message.get("more_body", False)
    return chunks, more


class FileResource(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        file = get_sandbox(request).files.retrieve(authenticate(request), **request.path_params)
        return json_response(serializers.file(file))

    async def delete(self, request: Request) -> Response:
        get_sandbox(request).files.remove(authenticate(request), **request.path_params)
        return Response(status_code=204)


routes = [
    Route("/v1/transfers/{transfer_id}/files", FileCollection),
    Route("/v1/transfers/{transfer_id}/files/{file_id}", FileResource),
]
