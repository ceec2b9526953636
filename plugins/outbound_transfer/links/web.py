"""Links to transfers in the service's web application."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from outbound_transfer.client.wording import is_valid_unicode

if TYPE_CHECKING:
    from outbound_transfer.client.settings import Settings

#: Placeholder for a transfer's id in the ``web_url`` of a connection.
ID_PLACEHOLDER: Final = "{transfer_id}"

#: An http or https address whose host can be seen: no user, no placeholder, and nothing that a browser reads otherwise.
_SAFE_URL: Final = re.compile(
    r"https?://(?:\[[0-9a-fA-F:.]+\]|(?:(?![/?#@{}\[\]\\:])[!-~])+)(?::[0-9]+)?(?:[/?#][!-~]*)?"
)


def link_to(settings: Settings, transfer_id: Any) -> str:
    """Return the address of a transfer of the account; see :func:`transfer_url`."""
    return transfer_url(settings.web_url or settings.base_url, transfer_id)


def transfer_url(web_url: str, transfer_id: Any) -> str:
    """Return the address of a transfer in the web application; "" if no safe link is possible.

    The service does not document the addresses of its web application. ``web_url`` may therefore contain
    ``{transfer_id}``; without it, ``/transfers/{transfer_id}`` is appended, as in the paths of the API.

    :param transfer_id: opaque; quoted as a whole, so that it cannot lead to another page. A value that is not an id
        (such as None from a template) gives "".
    """
    is_id = isinstance(transfer_id, str) and transfer_id.strip(".") and is_valid_unicode(transfer_id)
    if not is_id or not _SAFE_URL.fullmatch(web_url):
        return ""
    if ID_PLACEHOLDER not in web_url:
        web_url = "" if {"?", "#"} & set(web_url) else f"{web_url.rstrip('/')}/transfers/{ID_PLACEHOLDER}"
    return web_url.replace(ID_PLACEHOLDER, quote(transfer_id, safe=""))
