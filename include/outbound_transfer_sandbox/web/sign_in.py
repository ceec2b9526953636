"""Signing in to the web application, and out of it."""

from __future__ import annotations

import re

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain.errors import ApiError

from .page_request import PageRequest, page_endpoint
from .rendering import render


async def form(page: PageRequest) -> Response:
    return render(
        page, "sign_in.html", error=None, user="", next=_local_path(page.request.query_params.get("next", ""))
    )


async def sign_in(page: PageRequest) -> Response:
    user, next_path = page.form_value("user").strip(), _local_path(page.form_value("next"))
    try:
        page.token = page.sandbox.users.sign_in(user, page.form_value("password"))
    except ApiError as error:
        return render(page, "sign_in.html", error.status, error=error.message, user=user, next=next_path)
    return RedirectResponse(next_path, 303)


async def sign_out(page: PageRequest) -> Response:
    page.sandbox.sessions.remove(page.token)
    return RedirectResponse("/sign-in", 303)


def _local_path(path: str) -> str:
    """Return `path` if it is a path of this site, and the start page otherwise."""
    return path if re.fullmatch(r"/(?![/\\])[\x21-\x7e]*", path) else "/transfers"


routes = [
    Route("/sign-in", page_endpoint(form, public=True)),
    Route("/sign-in", page_endpoint(sign_in, public=True), methods=["POST"]),
    Route("/sign-out", page_endpoint(sign_out), methods=["POST"]),
]
