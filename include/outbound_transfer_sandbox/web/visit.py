"""One request of a browser: its cookie, its form, who it is. Every POST proves that it comes from our own page."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.errors import ApiError, invalid_request
from outbound_transfer_sandbox.models import Person
from outbound_transfer_sandbox.service.sandbox import Sandbox

Form = dict[str, list[str]]

_COOKIE_AGE = unspecified.SESSION_LIFETIME // 1_000_000


@dataclass
class Visit:
    """`token` is the cookie's: the session's where there is one, otherwise a random one that forms are bound to."""

    request: Request
    cookie: str
    path: str
    token: str
    person: Person | None = None
    form: Form = field(default_factory=dict)

    @property
    def sandbox(self) -> Sandbox:
        sandbox: Sandbox = self.request.app.state.sandbox
        return sandbox

    @property
    def csrf(self) -> str:
        return self.sandbox.context.derived(f"csrf {self.cookie} {self.token}")

    @property
    def user(self) -> str:
        """Who is signed in, on pages that need it."""
        assert self.person is not None
        return self.person.name

    def text(self, name: str) -> str:
        """A field of the form; empty when it was not sent."""
        return self.form.get(name, [""])[0]

    def path_number(self, name: str) -> int:
        number: int = self.request.path_params[name]
        return min(number, unspecified.FOREVER)

    def query_number(self, name: str, default: int) -> int:
        """A number in the address that only our own links carry."""
        text = self.request.query_params.get(name, "")
        return int(text) if re.fullmatch("[0-9]{1,18}", text) else default

    def check_form(self) -> None:
        if not hmac.compare_digest(self.text("csrf").encode(), self.csrf.encode()):
            raise ApiError(403, "forbidden", "This form is out of date. Go back, reload the page and try again.")

    def keep(self, response: Response) -> Response:
        """The response, with the cookie."""
        response.set_cookie(self.cookie, self.token, max_age=_COOKIE_AGE, path=self.path, httponly=True, samesite="lax")
        return response


Handler = Callable[[Visit], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def page(handler: Handler, *, administrator: bool = False, public: bool = False) -> Endpoint:
    """An endpoint for who is signed in, for administrators only, or for all."""

    async def endpoint(request: Request) -> Response:
        visit = await begin(request, "web", "/")
        if visit.person is None and not public:
            return RedirectResponse(f"/sign-in?next={quote(_wanted(request), safe='')}", 303)
        if administrator and not (visit.person and visit.person.administrator):
            raise ApiError(403, "forbidden", "Only an administrator can open this page.")
        return visit.keep(await handler(visit))

    return endpoint


async def begin(request: Request, name: str, path: str) -> Visit:
    """The visit, its form read and checked. Cookies end at `path`; their names differ from sandbox to sandbox."""
    if request.state.refusal is not None:
        raise request.state.refusal
    sandbox: Sandbox = request.app.state.sandbox
    # Browsers do not tell ports apart: two sandboxes on one machine share a cookie jar.
    cookie = f"sandbox_{name}_{sandbox.context.derived('cookie')[:8]}"
    brought = _brought(request.headers.get("cookie", ""), cookie)
    # Only what we could have made goes back into a header.
    token = brought if re.fullmatch("[A-Za-z0-9_-]{43}", brought) else secrets.token_urlsafe(32)
    visit = Visit(request, cookie, path, token, sandbox.people.signed_in(token))
    request.state.visit = visit
    if request.method == "POST":
        visit.form = await _read_form(request)
        visit.check_form()
    return visit


def _brought(header: str, name: str) -> str:
    """The value of one cookie. Ours are plain words; undoing quotes takes libraries time with the square of a value."""
    pairs = (pair.partition("=") for pair in header.split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _wanted(request: Request) -> str:
    return request.url.path if request.method == "GET" else "/transfers"


async def _read_form(request: Request) -> Form:
    """Raises 400 for anything but a small urlencoded form, 408 when it does not come in time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise invalid_request("A form was expected.")
    try:
        body = await asyncio.wait_for(_bounded(request), unspecified.BODY_SECONDS)
    except asyncio.TimeoutError:
        raise ApiError(408, "timeout", "The form took too long.", {"Connection": "close"}) from None
    form: Form = {}
    try:
        for name, value in parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=100):
            form.setdefault(name, []).append(value)
    except ValueError:
        raise invalid_request("The form has too many fields.") from None
    return form


async def _bounded(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > unspecified.MAX_FORM_BYTES:
                raise ApiError(413, "invalid_request", "The form is too long.")
    except ClientDisconnect:
        raise invalid_request("The form is incomplete.") from None
    return bytes(body)


def show_once(visit: Visit, secret: str) -> None:
    """Keeps a secret, in memory alone, for the page that the browser is sent to next."""
    shown: dict[str, Any] = visit.request.app.state.shown_once
    shown[visit.token] = secret


def shown_once(visit: Visit) -> str | None:
    shown: dict[str, Any] = visit.request.app.state.shown_once
    secret: str | None = shown.pop(visit.token, None)
    return secret
