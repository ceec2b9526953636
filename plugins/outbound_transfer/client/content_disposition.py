"""The Content-Disposition of an upload (service-api.md, R30; RFC 6266 and RFC 8187)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote

from outbound_transfer.client.errors import NameRefused

#: Limit of common file systems, so that a recipient can save the file.
MAX_NAME_BYTES: Final = 255

#: Controls, halves of characters, what is not seen or turns the direction of others, and separators of lines.
_REFUSED_CATEGORIES: Final = {
    "Cc": "contains a control character",
    "Cs": "is not valid Unicode",
    **dict.fromkeys(("Cf", "Zl", "Zp"), "contains a character that is not seen and makes a name look like another"),
}

#: They join letters of some scripts, and the parts of an emoji.
_JOINERS: Final = "\u200c\u200d"

_ATTR_CHARS: Final = "!#$&+-.^_`|~"  # RFC 8187 §3.2.1, beyond letters and digits


def attachment(name: str) -> str:
    """Return the header's value: ``filename*`` has the exact name, ``filename`` the closest one in ASCII.

    :raises NameRefused: the service could not store this name unchanged.
    """
    check_name(name)
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() or "file"
    # Parsers disagree on quotes, backslashes and percent signs, so the fallback has none. A slash can result from the
    # normalization of other characters.
    fallback = re.sub(r'["\\%/]', "_", ascii_name)
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{quote(name, safe=_ATTR_CHARS)}"


def check_name(name: str) -> None:
    """Check that the service will store a file name unchanged, and that the name does not look like another.

    :raises NameRefused: it would not, or it does; the text gives the reason.
    """
    if reason := _reason_against(name):
        raise NameRefused(f'the file name {name!r} {reason}; give another with {{"path": …, "name": …}}')


def _reason_against(name: str) -> str:
    if not name.replace(".", "").strip():
        return "is empty or consists of dots and spaces"
    if "/" in name or "\\" in name:
        return "contains a path separator, and the service strips directory parts"
    for character in name:
        if character not in _JOINERS and (reason := _REFUSED_CATEGORIES.get(unicodedata.category(character))):
            return reason
    return f"is over {MAX_NAME_BYTES} bytes in UTF-8" if len(name.encode()) > MAX_NAME_BYTES else ""
