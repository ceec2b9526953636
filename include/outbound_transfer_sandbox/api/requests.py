"""Helpers of the endpoints: parameters, headers, JSON bodies, JSON responses, errors."""

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

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_request
from outbound_transfer_sandbox.service.sandbox import SandboxService

T = TypeVar("T")


def get_sandbox(request: Request) -> SandboxService:
    sandbox: SandboxService = request.app.state.sandbox
    return sandbox


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


async def read_json(request: Request, shape: type[T]) -> T:
    """Decode the body as `shape`. Raises 400 invalid_request with the name of the wrong field, 408 if it is slow."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise invalid_request("Content-Type must be application/json.")
    try:
        body = await asyncio.wait_for(_read_body(request), defaults.BODY_TIMEOUT_SECONDS)
    except TimeoutError:
        raise ApiError(408, "invalid_request", "The body took too long.", {"Connection": "close"}) from None
    return decode(body, shape)


def decode(body: bytes, shape: type[T]) -> T:
    """Decode JSON as `shape`. Raises 400 invalid_request."""
    try:
        value = msgspec.json.decode(body, type=shape)
        # msgspec accepts repeated fields, so they are checked here.
        json.loads(body, object_pairs_hook=_reject_duplicates)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise invalid_request(f"The body is invalid: {error}") from None
    return value


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"a field is given twice among {', '.join(map(repr, names[:20]))}")


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > defaults.MAX_JSON_BYTES:
                raise invalid_request(f"The body is longer than {defaults.MAX_JSON_BYTES} bytes.")
    except ClientDisconnect:
        raise invalid_request("The body is incomplete.") from None
    return bytes(body)


def get_parameter(request: Request, name: str) -> str | None:
    """Return a query parameter. Raises 400 invalid_request if it is repeated."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise invalid_request(f"{name} is given twice.")
    return values[0] if values else None


def get_integer(request: Request, name: str, default: int) -> Decimal:
    """Return an integer parameter of any size. Raises 400 invalid_request for other text."""
    text = get_parameter(request, name)
    if text is None:
        return Decimal(default)
    if not re.fullmatch("-?[0-9]+", text):
        raise invalid_request(f"{name} must be an integer.")
    return Decimal(text)


def get_header(request: Request, name: str) -> str | None:
    """Return a header. Raises 400 invalid_request if it is repeated."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise invalid_request(f"{name} is given twice.")
    return values[0] if values else None


async def on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error_response(error.status, error.code, error.message, error.headers)


async def on_http_exception(_request: Request, error: Exception) -> Response:
    """Return the error response for an unknown path or method."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return _error_response(error.status_code, code, error.detail, error.headers)


async def on_exception(_request: Request, _error: Exception) -> Response:
    return _error_response(500, "internal_error", "The service failed.")


def _error_response(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return json_response({"error": code, "message": message}, status, headers)
