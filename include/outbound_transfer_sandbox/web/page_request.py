"""A request from a browser: cookie, form, user. Every POST must have the CSRF token of one of our pages.

Starlette's SessionMiddleware does not fit: each pickup link has a cookie of its own, and the store has only hashes.
"""

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

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_request
from outbound_transfer_sandbox.domain.models import WebUser
from outbound_transfer_sandbox.service.sandbox import SandboxService

Form = dict[str, list[str]]

_COOKIE_AGE = defaults.SESSION_LIFETIME_SECONDS


@dataclass
class PageRequest:
    """`token` is the cookie's value: the session's token, or a random one that CSRF tokens depend on."""

    request: Request
    cookie: str
    path: str
    token: str
    web_user: WebUser | None = None
    form: Form = field(default_factory=dict)

    @property
    def sandbox(self) -> SandboxService:
        sandbox: SandboxService = self.request.app.state.sandbox
        return sandbox

    @property
    def csrf(self) -> str:
        return self.sandbox.context.derive_secret(f"csrf {self.cookie} {self.token}")

    @property
    def user(self) -> str:
        """Return the name of the user. Only for pages that require signing in."""
        assert self.web_user is not None
        return self.web_user.name

    def form_value(self, name: str) -> str:
        """Return a field of the form, or an empty text if it is missing."""
        return self.form.get(name, [""])[0]

    def path_number(self, name: str) -> int:
        number: int = self.request.path_params[name]
        return min(number, defaults.MAX_TIMESTAMP)

    def query_number(self, name: str, default: int) -> int:
        """Return a number in the query string, or `default` if it is missing or invalid."""
        text = self.request.query_params.get(name, "")
        return int(text) if re.fullmatch("[0-9]{1,18}", text) else default

    def check_csrf(self) -> None:
        if not hmac.compare_digest(self.form_value("csrf").encode(), self.csrf.encode()):
            raise ApiError(403, "forbidden", "This form is out of date. Go back, reload the page and try again.")

    def with_cookie(self, response: Response) -> Response:
        """Return the response with the cookie set."""
        response.set_cookie(self.cookie, self.token, max_age=_COOKIE_AGE, path=self.path, httponly=True, samesite="lax")
        return response


Handler = Callable[[PageRequest], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def page_endpoint(handler: Handler, *, administrator: bool = False, public: bool = False) -> Endpoint:
    """Return an endpoint for signed-in users, for administrators only or, if `public`, for everyone."""

    async def endpoint(request: Request) -> Response:
        page = await load(request, "web", "/")
        if page.web_user is None and not public:
            return RedirectResponse(f"/sign-in?next={quote(_return_path(request), safe='')}", 303)
        if administrator and not (page.web_user and page.web_user.administrator):
            raise ApiError(403, "forbidden", "Only an administrator can open this page.")
        return page.with_cookie(await handler(page))

    return endpoint


async def load(request: Request, name: str, path: str) -> PageRequest:
    """Read the cookie and the form, and check the form's CSRF token. Cookies are valid below `path`."""
    if request.state.refusal is not None:
        raise request.state.refusal
    sandbox: SandboxService = request.app.state.sandbox
    # Browsers share cookies between ports, so each sandbox has cookie names of its own.
    cookie = f"sandbox_{name}_{sandbox.context.derive_secret('cookie')[:8]}"
    value = _cookie_value(request.headers.get("cookie", ""), cookie)
    # Only a value that the sandbox could have generated is sent back in a header.
    token = value if re.fullmatch("[A-Za-z0-9_-]{43}", value) else secrets.token_urlsafe(32)
    page = PageRequest(request, cookie, path, token, sandbox.users.find_signed_in(token))
    request.state.page = page
    if request.method == "POST":
        page.form = await _read_form(request)
        page.check_csrf()
    return page


def _cookie_value(header: str, name: str) -> str:
    """Return the value of a cookie.

    Our cookies have no quotes. Libraries unquote values in quadratic time, so none is used here.
    """
    pairs = (pair.partition("=") for pair in header.split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _return_path(request: Request) -> str:
    return request.url.path if request.method == "GET" else "/transfers"


async def _read_form(request: Request) -> Form:
    """Read a small urlencoded form. Raises 400 for any other body, 408 if it takes too long."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise invalid_request("A form was expected.")
    try:
        body = await asyncio.wait_for(_read_body(request), defaults.BODY_TIMEOUT_SECONDS)
    except TimeoutError:
        raise ApiError(408, "timeout", "The form took too long.", {"Connection": "close"}) from None
    form: Form = {}
    try:
        for name, value in parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=100):
            form.setdefault(name, []).append(value)
    except ValueError:
        raise invalid_request("The form has too many fields.") from None
    return form


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > defaults.MAX_FORM_BYTES:
                raise ApiError(413, "invalid_request", "The form is too long.")
    except ClientDisconnect:
        raise invalid_request("The form is incomplete.") from None
    return bytes(body)


def flash_secret(page: PageRequest, secret: str) -> None:
    """Store a secret in memory for the next page of this browser."""
    shown: dict[str, Any] = page.request.app.state.flash_secrets
    shown[page.token] = secret


def pop_flash_secret(page: PageRequest) -> str | None:
    """Return the secret of `flash_secret`, once."""
    shown: dict[str, Any] = page.request.app.state.flash_secrets
    secret: str | None = shown.pop(page.token, None)
    return secret
