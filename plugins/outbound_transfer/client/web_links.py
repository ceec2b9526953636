"""Links to transfers in the service's web application."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final
from urllib.parse import quote, urlsplit

#: Placeholder for a transfer's id in the ``web_url`` of a connection.
ID_PLACEHOLDER: Final = "{transfer_id}"

#: Characters that a link may contain unquoted.
_PRINTABLE_ASCII: Final = re.compile(r"[\x21-\x7e]+")


def transfer_url(web_url: str, transfer_id: object) -> str:
    """Return the address of a transfer in the web application; "" if no safe link is possible.

    The service does not document the addresses of its web application. ``web_url`` may therefore contain
    ``{transfer_id}``; without it, ``/transfers/{transfer_id}`` is appended, as in the paths of the API.

    :param web_url: an http or https address.
    :param transfer_id: opaque; quoted as a whole, so that it cannot lead to another page. A value that is not an id
        (such as None from a template) gives "".
    """
    if not isinstance(transfer_id, str) or not transfer_id.strip(".") or not _is_safe(web_url):
        return ""
    with suppress(UnicodeEncodeError):
        quoted = quote(transfer_id, safe="")
        if ID_PLACEHOLDER in web_url:
            return web_url.replace(ID_PLACEHOLDER, quoted)
        return f"{web_url.rstrip('/')}/transfers/{quoted}"
    return ""


def _is_safe(web_url: str) -> bool:
    """Return whether an address opens a web page on the host that it shows, and contains no credentials."""
    try:
        url = urlsplit(web_url)
    except ValueError:
        return False
    has_page_path = ID_PLACEHOLDER in web_url or not (url.query or url.fragment)
    return bool(
        _PRINTABLE_ASCII.fullmatch(web_url)
        and url.scheme in ("http", "https")
        and url.hostname
        and not {"@", "{", "\\"} & set(url.netloc)
        and has_page_path
    )
