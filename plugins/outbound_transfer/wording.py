"""Words for people: counts with their nouns or units, and texts from outside without invisible characters."""

from __future__ import annotations

import re
from typing import Any, Final

#: Invisible characters: controls, and marks that change the direction of text.
_INVISIBLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")

_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def clean(text: Any, max_length: int = 200) -> str:
    """Return ``text`` with invisible characters replaced, cut to ``max_length`` characters."""
    found = _INVISIBLE.sub("\ufffd", str(text)[: max_length + 1])
    return found if len(found) <= max_length else found[: max_length - 1] + "…"


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
    for span, unit in _SPANS:
        if left >= span and len(parts) < 2:
            parts.append(f"{left // span} {unit}")
            left = 0 if left // span >= 10 else left % span
        elif parts:
            break
    return " ".join(parts) or "0 s"
