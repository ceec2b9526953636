"""Account settings, for administrators."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outbound_transfer_sandbox.errors import ApiError
from outbound_transfer_sandbox.models import SECURITY_OPTIONS, Account
from outbound_transfer_sandbox.service import settings

from .pages import render
from .visit import Form, Visit, page

_SWITCHES = ("api_enabled", "outgoing_enabled")


async def form(visit: Visit) -> Response:
    saved = "saved" in visit.request.query_params
    return _page(visit, visit.sandbox.context.account, saved=saved)


def _page(
    visit: Visit, account: Account, status: int = 200, *, saved: bool = False, error: str | None = None
) -> Response:
    values = {"account": account, "options": SECURITY_OPTIONS, "saved": saved, "error": error}
    return render(visit, "account.html", status, **values)


async def save(visit: Visit) -> Response:
    context = visit.sandbox.context
    try:
        context.change_account(settings.changed(context.account, _changes(visit.form), strict=False))
    except ApiError as error:
        return _page(visit, context.account, error.status, error=error.message)
    return RedirectResponse("/account?saved", 303)


def _changes(form: Form) -> dict[str, str | list[str]]:
    """The form's fields; a switch that is off is not sent at all."""
    fields = {name: values[0] for name, values in form.items() if name in Account.__struct_fields__}
    switches = {name: fields.get(name, "false") for name in _SWITCHES}
    return fields | switches | {"security_options": form.get("security_options", [])}


routes = [
    Route("/account", page(form, administrator=True)),
    Route("/account", page(save, administrator=True), methods=["POST"]),
]
