"""Renders templates, and defines the headers of every response."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse

from outbound_transfer.client.wording import DASH, format_duration

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC: Final = Path(__file__).with_name("static")

#: Only Airflow may show the page in a frame.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("outbound_transfer.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"timestamp": format_timestamp, "duration": format_duration}
    return environment


def format_timestamp(timestamp: datetime | None) -> str:
    """Return for example ``2026-01-31 23:59:59 UTC``, or a dash for None."""
    return timestamp.strftime("%Y-%m-%d %H:%M:%S UTC") if timestamp else DASH


def render_page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template as a response that is not cached."""
    html = _environment().get_template(template).render(**values)
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})


def render_message(status: int, title: str, text: str) -> HTMLResponse:
    """Render a page with a message: what is wrong, and what to do."""
    return render_page("message.html", status, title=title, text=text, refresh=False)
