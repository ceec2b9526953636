"""The Content-Disposition of an upload (service.md, POST .../files; RFC 6266 and RFC 8187)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote

from outbound_transfer.protocol.errors import NameRefused

#: What common file systems hold, so that a recipient can save the file.
MAX_NAME_BYTES: Final = 255

_ATTR_CHARS: Final = "!#$&+-.^_`|~"  # RFC 8187 §3.2.1, beyond letters and digits


def attachment(name: str) -> str:
    """The header's value: ``filename*`` with the exact name, ``filename`` with its nearest in ASCII.

    :raises NameRefused: the service could not store this name unchanged.
    """
    check_name(name)
    nearest = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() or "file"
    # Quotes, backslashes and percent signs are read differently by different parsers, so the fallback has none; nor
    # a slash, which is the nearest to some characters of a name.
    fallback = re.sub(r'["\\%/]', "_", nearest)
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{quote(name, safe=_ATTR_CHARS)}"


def check_name(name: str) -> None:
    """Refuse a name that would not come back the same.

    :raises NameRefused: with the reason.
    """
    if reason := _reason_against(name):
        raise NameRefused(f'the file name {name!r} {reason}; give another with {{"path": …, "name": …}}')


def _reason_against(name: str) -> str:
    if not name.replace(".", "").strip():
        return "is empty, or nothing but dots and spaces"
    if "/" in name or "\\" in name:
        return "has a path separator, and the service strips directory parts"
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "has a control character"
    if any(unicodedata.category(character) == "Cs" for character in name):
        return "is not valid Unicode"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is over {MAX_NAME_BYTES} bytes in UTF-8"
    return ""
