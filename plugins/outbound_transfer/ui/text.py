"""Values as a person reads them: pure."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, Final

#: What does not show, or makes what follows show otherwise: controls, and marks that turn the direction of text.
_INVISIBLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")

#: Where there is nothing to say.
NONE: Final = "\N{EN DASH}"

_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def shown(text: Any, most: int = 200) -> str:
    """Text of anybody's, of at most so many characters, in which nothing is invisible."""
    found = _INVISIBLE.sub("\ufffd", str(text)[: most + 1])
    return found if len(found) <= most else found[: most - 1] + "…"


def span(seconds: float) -> str:
    """``2 d 3 h``, ``5 min``: the two greatest units, the second one only below a hundred of the first."""
    left = max(0, round(seconds))
    for (size, unit), (small, small_unit) in pairwise(_SPANS):
        if left >= size:
            more = left % size // small
            return f"{left // size} {unit}" + (f" {more} {small_unit}" if more and left < 10 * size else "")
    return f"{left} s"


def size(count: int) -> str:
    """``1.2 MB``: thousands, as files are measured."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{count} B" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1_000
    return f"{number:,.3g} TB" if number < 999.5 else f"{number:,.0f} TB"


def moment(value: Any) -> datetime | None:
    """An instant as the databases give it: a datetime, or text of ISO 8601. None where it is neither."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.astimezone(timezone.utc) if value.tzinfo else value.replace(tzinfo=timezone.utc)
