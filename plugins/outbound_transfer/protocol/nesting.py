"""How deeply a line of the feed is nested, seen without reading it."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

#: Levels of a line's JSON. Beyond, whether it can be read would depend on who calls; it could not everywhere.
MAX_DEPTH: Final = 500

_texts: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NO_STEPS: Final = bytes(set(range(256)) - set(_STEPS))


def _depths(bare: bytes) -> list[int]:
    """The depth after each bracket of a line without its texts."""
    return list(accumulate(_STEPS[bracket] for bracket in bare.translate(None, _NO_STEPS)))


def is_deep(line: bytes) -> bool:
    """Whether the JSON of a line has more than :data:`MAX_DEPTH` levels."""
    # A line that is short, or has few brackets, cannot be; nearly all are seen so.
    if len(line) <= 2 * MAX_DEPTH or line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return False
    return max(_depths(_texts.sub(b"", line)), default=0) > MAX_DEPTH


def is_closed(line: bytes) -> bool:
    """Whether a line that is no JSON is whole all the same: an object whose every bracket is closed."""
    bare = _texts.sub(b"", line.strip(b" \t\r"))
    if bare[:1] != b"{" or bare[-1:] != b"}" or b'"' in bare:
        return False
    *inner, last = _depths(bare)
    return last == 0 and min(inner, default=0) > 0
