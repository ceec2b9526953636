"""Templates, and the headers of every answer."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse

from outbound_transfer.ui.text import NONE, span

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC: Final = Path(__file__).with_name("static")

#: Airflow shows the page in a frame of its own; nothing else may.
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
    environment.filters |= {"instant": instant, "span": span}
    return environment


def instant(moment: datetime | None) -> str:
    """``2026-01-31 23:59:59 UTC``, or a dash."""
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if moment else NONE


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page that no cache keeps."""
    html = _environment().get_template(template).render(**values)
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})


def message(status: int, title: str, text: str) -> HTMLResponse:
    """A page that says what is missing, and what to do about it."""
    return page("message.html", status, title=title, text=text, refresh=False)
