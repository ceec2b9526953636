"""What every endpoint shares: reading parameters and bodies, JSON answers, errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.errors import ApiError, invalid_request
from outbound_transfer_sandbox.service.sandbox import Sandbox

T = TypeVar("T")


def sandbox_of(request: Request) -> Sandbox:
    sandbox: Sandbox = request.app.state.sandbox
    return sandbox


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


async def read_json(request: Request, shape: type[T]) -> T:
    """The body as `shape`. Raises 400 invalid_request that names the field, whatever the body is."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise invalid_request("Content-Type must be application/json.")
    try:
        body = await asyncio.wait_for(_body(request), unspecified.BODY_SECONDS)
    except asyncio.TimeoutError:
        raise ApiError(408, "invalid_request", "The body took too long.", {"Connection": "close"}) from None
    return decode(body, shape)


def decode(body: bytes, shape: type[T]) -> T:
    """JSON bytes as `shape`. Raises 400 invalid_request."""
    try:
        value = msgspec.json.decode(body, type=shape)
        # msgspec keeps the last of repeated names; this finds them.
        json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise invalid_request(f"The body is wrong: {error}") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"a field is given twice among {', '.join(map(repr, names[:20]))}")


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > unspecified.MAX_JSON_BYTES:
                raise invalid_request(f"The body is longer than {unspecified.MAX_JSON_BYTES} bytes.")
    except ClientDisconnect:
        raise invalid_request("The body is incomplete.") from None
    return bytes(body)


def parameter(request: Request, name: str) -> str | None:
    """A query parameter. Raises 400 invalid_request when it is repeated."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise invalid_request(f"{name} is given twice.")
    return values[0] if values else None


def integer(request: Request, name: str, default: int) -> Decimal:
    """A query parameter that must be an integer of any size. Raises 400 invalid_request."""
    text = parameter(request, name)
    if text is None:
        return Decimal(default)
    if not re.fullmatch("-?[0-9]+", text):
        raise invalid_request(f"{name} must be an integer.")
    return Decimal(text)


def header(request: Request, name: str) -> str | None:
    """A header that may stand once. Raises 400 invalid_request when it is repeated."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise invalid_request(f"{name} is given twice.")
    return values[0] if values else None


async def on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _failure(error.status, error.code, error.message, error.headers)


async def on_http_exception(_request: Request, error: Exception) -> Response:
    """An unknown path or method, in the shape of every other error."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return _failure(error.status_code, code, error.detail, error.headers)


async def on_exception(_request: Request, _error: Exception) -> Response:
    return _failure(500, "internal_error", "The service failed.")


def _failure(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return answer({"error": code, "message": message}, status, headers)
