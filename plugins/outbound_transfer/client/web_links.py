"""Links to transfers in the service's web application."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, urlsplit

#: Placeholder for a transfer's id in the ``web_url`` of a connection.
ID_PLACEHOLDER: Final = "{transfer_id}"


def transfer_url(web_url: str, transfer_id: object) -> str:
    """Return the address of a transfer in the web application; "" if no safe link is possible.

    The service does not document the addresses of its web application. ``web_url`` may therefore contain
    ``{transfer_id}``; without it, ``/transfers/{transfer_id}`` is appended, as in the paths of the API.

    :param web_url: an http or https address.
    :param transfer_id: opaque; quoted as a whole, so that it cannot lead to another page. A value that is not an id
        (such as None from a template) gives "".
    """
    if not isinstance(transfer_id, str) or not transfer_id.strip("."):
        return ""
    try:
        url, quoted = urlsplit(web_url), quote(transfer_id, safe="")
    except ValueError:
        return ""
    is_printable = re.fullmatch(r"[\x21-\x7e]+", web_url)
    shows_its_host = url.scheme in ("http", "https") and url.hostname and not {"@", "{", "\\"} & set(url.netloc)
    if not (is_printable and shows_its_host):
        return ""
    if ID_PLACEHOLDER in web_url:
        return web_url.replace(ID_PLACEHOLDER, quoted)
    return "" if url.query or url.fragment else f"{web_url.rstrip('/')}/transfers/{quoted}"
