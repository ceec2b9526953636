"""The Content-Disposition of an upload (service-api.md, R30; RFC 6266 and RFC 8187)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote

from outbound_transfer.protocol.errors import NameRefused

#: Limit of common file systems, so that a recipient can save the file.
MAX_NAME_BYTES: Final = 255

#: Characters that are not seen, and those that turn the direction of others: Unicode's Default_Ignorable_Code_Point,
#: separators of lines and paragraphs, marks of annotations, and the empty pattern of Braille.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_VARIATION_SELECTORS: Final = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_ZERO_WIDTH_NON_JOINER, _ZERO_WIDTH_JOINER, _EMOJI_FORM, _KEYCAP = "\u200c\u200d\ufe0f\u20e3"

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
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "contains a control character"
    if any(unicodedata.category(character) == "Cs" for character in name):
        return "is not valid Unicode"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is over {MAX_NAME_BYTES} bytes in UTF-8"
    for found in _INVISIBLE.finditer(name):
        if not _is_shaping(name, found.start()):
            return f"contains U+{ord(found[0]):04X}, which is not seen and makes a name look like another"
    return ""


def _is_shaping(name: str, position: int) -> bool:
    """Return whether an invisible character belongs there: it changes the form of the characters beside it."""
    character, before, after = name[position], name[position - 1 : position], name[position + 1 : position + 2]
    if _VARIATION_SELECTORS.match(character):
        return after == _KEYCAP or _is_symbol(before) or _category(before) == "Lo"
    if character not in (_ZERO_WIDTH_JOINER, _ZERO_WIDTH_NON_JOINER):
        return False
    if character == _ZERO_WIDTH_JOINER and _is_symbol(after) and (_is_symbol(before) or before == _EMOJI_FORM):
        return True
    import idna  # only here, as its tables take time to load

    return idna.valid_contextj(name, position)  # in scripts whose letters join (RFC 5892, appendix A)


def _is_symbol(character: str) -> bool:
    return not character.isascii() and _category(character)[0] in "SP"


def _category(character: str) -> str:
    return unicodedata.category(character) if character else "Cn"
