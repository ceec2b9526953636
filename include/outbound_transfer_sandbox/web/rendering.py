"""Templates and error pages. Jinja2 is imported with the first page, because most tests never show one."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from outbound_transfer_sandbox.api import requests
from outbound_transfer_sandbox.domain.clock import format_for_people, iso
from outbound_transfer_sandbox.domain.errors import ApiError

if TYPE_CHECKING:
    from jinja2 import Environment

    from .page_request import PageRequest


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
    environment.filters |= {"format_for_people": format_for_people, "iso": iso}
    return environment


def render(page: PageRequest, template: str, status: int = 200, **values: Any) -> Response:
    """Render a template with `values`, `page`, `web_user` and the service's time as `now`."""
    return _html(template, status, page=page, web_user=page.web_user, now=page.sandbox.context.clock.now(), **values)


def _html(template: str, status: int, **values: Any) -> Response:
    return HTMLResponse(_environment().get_template(template).render(**values), status)


def _error(request: Request, status: int, message: str) -> Response:
    page: PageRequest | None = getattr(request.state, "page", None)
    now = request.app.state.sandbox.context.clock.now()
    values = {"web_user": page and page.web_user, "now": now, "page": page, "message": message}
    return _html("error.html", status, title=HTTPStatus(status).phrase, **values)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = _error(request, error.status, error.message)
    response.headers.update(error.headers or {})
    return response


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Return the error for an unknown path or method: a page for browsers, the API's JSON for programs."""
    assert isinstance(error, HTTPException)
    if "text/html" not in request.headers.get("accept", ""):
        return await requests.on_http_exception(request, error)
    response = _error(request, error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


async def on_exception(request: Request, _exception: Exception) -> Response:
    return _error(request, 500, "The sandbox failed. Its log has the details.")
