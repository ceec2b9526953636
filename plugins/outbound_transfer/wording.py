"""Words for people: counts with their nouns or units, and texts from outside in a form that can be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

#: Invisible characters: controls, marks that change the direction of text, soft hyphens, tags, fillers, notation.
_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb\U000110bd\U000110cd\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)

#: Maximum characters of a redacted text.
MAX_LENGTH: Final = 500


def is_valid_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogates, and can therefore be stored and sent."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def clean(text: Any, max_length: int = 200) -> str:
    """Return ``text`` with invisible characters replaced, cut to ``max_length`` characters."""
    found = _INVISIBLE.sub("\ufffd", str(text)[: max_length + 1])
    return found if len(found) <= max_length else found[: max_length - 1] + "…"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return a text of the service, a proxy or a driver with every secret in it as ``***``.

    :return: one printable line of at most :data:`MAX_LENGTH` characters.
    """
    line = _one_line(text[:100_000])  # which bounds the work
    # The longest first, as a secret may begin with another one. A short one is masked as a whole word only: a gap in an
    # ordinary word would reveal it. The cut comes last: a part of a secret is not recognized.
    forms = {form for secret in secrets for form in (_one_line(secret), _digits_of_phone(secret)) if form}
    for form in sorted(forms, key=len, reverse=True):
        pattern = re.escape(form) if len(form) > 4 else rf"(?<!\w){re.escape(form)}(?!\w)"
        line = re.sub(pattern, "***", line, flags=re.IGNORECASE)  # case does not count in an answer
    return line[:MAX_LENGTH]


def _digits_of_phone(text: str) -> str:
    """Return a phone as the service reads it, without punctuation (service-api.md, R25); "" for any other text."""
    digits = re.sub(r"[\W_]", "", text)
    return digits if digits.isdecimal() else ""


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 file``, ``2 files``, ``0 files``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """Format a number of bytes in units of 1,000: ``1.5 MB``."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.0f} B" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1_000
    return f"{number:,.3g} TB" if number < 999.5 else f"{number:,.0f} TB"


def format_duration(seconds: float) -> str:
    """Return for example ``2 d 3 h``: the largest unit, and the next one if there are fewer than 10 of it."""
    left, parts = max(0, round(seconds)), list[str]()
    for span, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if left >= span and len(parts) < 2:
            parts.append(f"{left // span} {unit}")
            left = 0 if left // span >= 10 else left % span
        elif parts:
            break
    return " ".join(parts) or "0 s"
