"""Account settings, for administrators."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.domain.models import SECURITY_OPTIONS, Account
from outbound_transfer_sandbox.service import settings

from .page_request import Form, PageRequest, page_endpoint
from .rendering import render

_SWITCHES = ("api_enabled", "outgoing_enabled")


async def form(page: PageRequest) -> Response:
    saved = "saved" in page.request.query_params
    return _render(page, page.sandbox.context.account, saved=saved)


def _render(
    page: PageRequest, account: Account, status: int = 200, *, saved: bool = False, error: str | None = None
) -> Response:
    values = {"account": account, "options": SECURITY_OPTIONS, "saved": saved, "error": error}
    return render(page, "account.html", status, **values)


async def save(page: PageRequest) -> Response:
    context = page.sandbox.context
    try:
        context.change_account(settings.apply_changes(context.account, _changes(page.form), strict=False))
    except ApiError as error:
        return _render(page, context.account, error.status, error=error.message)
    return RedirectResponse("/account?saved", 303)


def _changes(form: Form) -> dict[str, str | list[str]]:
    """Return the form's fields. Browsers do not send a switch that is off."""
    fields = {name: values[0] for name, values in form.items() if name in Account.__struct_fields__}
    switches = {name: fields.get(name, "false") for name in _SWITCHES}
    return fields | switches | {"security_options": form.get("security_options", [])}


routes = [
    Route("/account", page_endpoint(form, administrator=True)),
    Route("/account", page_endpoint(save, administrator=True), methods=["POST"]),
]
