"""Sign in and out of the web application."""

from __future__ import annotations

import re

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.errors import ApiError

from .pages import render
from .visit import Visit, page


async def form(visit: Visit) -> Response:
    return render(visit, "sign_in.html", error=None, user="", next=_inside(visit.request.query_params.get("next", "")))


async def sign_in(visit: Visit) -> Response:
    user, following = visit.text("user").strip(), _inside(visit.text("next"))
    try:
        visit.token = visit.sandbox.people.sign_in(user, visit.text("password"))
    except ApiError as error:
        return render(visit, "sign_in.html", error.status, error=error.message, user=user, next=following)
    return RedirectResponse(following, 303)


async def sign_out(visit: Visit) -> Response:
    visit.sandbox.sessions.end(visit.token)
    return RedirectResponse("/sign-in", 303)


def _inside(path: str) -> str:
    """`path` where it is one of ours, never another site's address."""
    return path if re.fullmatch(r"/(?![/\\])[\x21-\x7e]*", path) else "/transfers"


routes = [
    Route("/sign-in", page(form, public=True)),
    Route("/sign-in", page(sign_in, public=True), methods=["POST"]),
    Route("/sign-out", page(sign_out), methods=["POST"]),
]
