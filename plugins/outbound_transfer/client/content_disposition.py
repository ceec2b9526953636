"""The Content-Disposition of an upload (service-api.md, R30; RFC 6266 and RFC 8187)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote

from outbound_transfer.client.errors import InvalidDelivery

#: Limit of common file systems, so that a recipient can save the file.
MAX_NAME_BYTES: Final = 255

#: They join letters of some scripts, and the parts of an emoji.
_JOINERS: Final = {ord("\u200c"): None, ord("\u200d"): None}


def attachment(name: str) -> str:
    """Return the header's value: ``filename*`` has the exact name, ``filename`` the closest one in ASCII.

    :raises InvalidDelivery: the service could not store this name unchanged.
    """
    check_name(name)
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() or "file"
    # Parsers disagree on quotes, backslashes and percent signs; a slash may come of the normalization.
    fallback = re.sub(r'["\\%/]', "_", ascii_name)
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{quote(name, safe='')}"


def check_name(name: str) -> None:
    """Check that the service will store a file name unchanged, and that the name does not look like another.

    :raises InvalidDelivery: it would not, or it does; the text gives the reason.
    """
    categories = set(map(unicodedata.category, name.translate(_JOINERS)))
    reasons = {
        "is empty or consists of dots and spaces": not name.replace(".", "").strip(),
        "contains a path separator, and the service strips directory parts": {"/", "\\"} & set(name),
        "contains a control character": "Cc" in categories,
        "is not valid Unicode": "Cs" in categories,
        "contains a character that is not seen and makes a name look like another": {"Cf", "Zl", "Zp"} & categories,
        f"is over {MAX_NAME_BYTES} bytes in UTF-8": len(name.encode(errors="replace")) > MAX_NAME_BYTES,
    }
    if reason := next((reason for reason, is_found in reasons.items() if is_found), ""):
        raise InvalidDelivery(f'the file name {name!r} {reason}; give another with {{"path": …, "name": …}}')
