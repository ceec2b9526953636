"""`/v1/transfers/{transfer_id}/files` (service.md, Endpoints)."""

from __future__ import annotations

import asyncio

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive

from outbound_transfer_sandbox import limits, unspecified
from outbound_transfer_sandbox.errors import ApiError
from outbound_transfer_sandbox.models import File as FileRecord
from outbound_transfer_sandbox.store.blobs import Upload

from . import render
from .http import answer, header, sandbox_of
from .transfers import caller_of


class Files(HTTPEndpoint):
    async def post(self, request: Request) -> Response:
        sandbox, caller, transfer_id = sandbox_of(request), caller_of(request), request.path_params["transfer_id"]
        # A body in chunks has no Content-Length; the server refuses one that has both.
        length, disposition = header(request, "Content-Length"), header(request, "Content-Disposition")
        admission = sandbox.files.admit(caller, transfer_id, length, disposition)
        if admission.existing:
            return answer(render.file(admission.existing))
        upload = sandbox.context.blobs.begin(admission.size)
        try:
            await _receive(request.receive, upload, admission.size)
            file, attached = sandbox.files.attach(caller, transfer_id, admission, upload)
        finally:
            upload.discard()
        return _attached(transfer_id, file) if attached else answer(render.file(file))

    async def get(self, request: Request) -> Response:
        files = sandbox_of(request).files.of(caller_of(request), request.path_params["transfer_id"])
        return answer({"data": [render.file(file) for file in files]})


def _attached(transfer_id: str, file: FileRecord) -> Response:
    return answer(render.file(file), 201, {"Location": f"/v1/transfers/{transfer_id}/files/{file.id}"})


async def _receive(receive: Receive, upload: Upload, size: int) -> None:
    """Writes the body to `upload`. Raises 500 internal_error when it ends or stalls before `size` bytes.

    A megabyte is written in a thread while the next one comes in: a slow disk stops nobody else. The last one, all
    there is of a small file, is not worth a thread.
    """
    loop, missing, more = asyncio.get_running_loop(), size, True
    writing: asyncio.Future[None] | None = None
    try:
        while more:
            chunks, more = await asyncio.wait_for(_megabyte(receive), unspecified.UPLOAD_STALL_SECONDS)
            missing -= sum(map(len, chunks))
            if writing:
                await writing
            if more:
                writing = loop.run_in_executor(None, upload.write, chunks)
            else:
                upload.write(chunks)
    except asyncio.TimeoutError:
        pass  # it stalled: what is missing says so
    finally:
        if writing:
            await writing  # ends with no thread at work
    if missing:
        raise ApiError(500, "internal_error", "The upload was cut off; nothing is attached.", {"Connection": "close"})


async def _megabyte(receive: Receive) -> tuple[list[bytes], bool]:
    """The next megabyte or more of the body, in the pieces in which it came, and whether more follows."""
    chunks, size, more = [], 0, True
    while more and size < limits.MEGABYTE:
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        more = message.get("more_body", False)
    return chunks, more


class File(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        file = sandbox_of(request).files.retrieve(caller_of(request), **request.path_params)
        return answer(render.file(file))

    async def delete(self, request: Request) -> Response:
        sandbox_of(request).files.remove(caller_of(request), **request.path_params)
        return Response(status_code=204)


routes = [
    Route("/v1/transfers/{transfer_id}/files", Files),
    Route("/v1/transfers/{transfer_id}/files/{file_id}", File),
]
