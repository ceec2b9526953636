"""Templates and error pages. Jinja2 is loaded with the first page: most sandboxes in tests never show one."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from outbound_transfer_sandbox.api import http
from outbound_transfer_sandbox.clock import iso, when
from outbound_transfer_sandbox.errors import ApiError

if TYPE_CHECKING:
    from jinja2 import Environment

    from .visit import Visit


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("outbound_transfer_sandbox.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"when": when, "iso": iso}
    return environment


def render(visit: Visit, template: str, status: int = 200, **values: Any) -> Response:
    """A page; the templates find `visit`, `person`, the service's time and the values."""
    return _html(template, status, visit=visit, person=visit.person, now=visit.sandbox.context.clock.now(), **values)


def _html(template: str, status: int, **values: Any) -> Response:
    return HTMLResponse(_environment().get_template(template).render(**values), status)


def _error(request: Request, status: int, message: str) -> Response:
    visit: Visit | None = getattr(request.state, "visit", None)
    now = request.app.state.sandbox.context.clock.now()
    values = {"person": visit and visit.person, "now": now, "visit": visit, "message": message}
    return _html("error.html", status, title=HTTPStatus(status).phrase, **values)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = _error(request, error.status, error.message)
    response.headers.update(error.headers or {})
    return response


async def on_http_exception(request: Request, error: Exception) -> Response:
    """An unknown path or method; programs that mistyped one of the API get what the API answers."""
    assert isinstance(error, HTTPException)
    if "text/html" not in request.headers.get("accept", ""):
        return await http.on_http_exception(request, error)
    response = _error(request, error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def on_exception(request: Request, _exception: Exception) -> Response:
    return _error(request, 500, "The sandbox failed; its log says why.")
