"""Measures how deeply the JSON of a feed line is nested, without decoding it."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

#: Maximum levels of a line. Beyond it, the depth of the call stack would decide whether the line can be decoded.
MAX_DEPTH: Final = 500

_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NO_STEPS: Final = bytes(set(range(256)) - set(_STEPS))


def _depths(bare: bytes) -> list[int]:
    """Return the depth after each bracket of a line whose strings are removed."""
    return list(accumulate(_STEPS[bracket] for bracket in bare.translate(None, _NO_STEPS)))


def is_deep(line: bytes) -> bool:
    """Return whether the JSON of a line has more than :data:`MAX_DEPTH` levels."""
    # Fast path: nearly all lines are short or have few brackets.
    if len(line) <= 2 * MAX_DEPTH or line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return False
    return max(_depths(_STRINGS.sub(b"", line)), default=0) > MAX_DEPTH


def is_closed(line: bytes) -> bool:
    """Return whether an invalid line is nevertheless complete: an object with all brackets closed."""
    bare = _STRINGS.sub(b"", line.strip(b" \t\r"))
    if bare[:1] != b"{" or bare[-1:] != b"}" or b'"' in bare:
        return False
    *inner, last = _depths(bare)
    return last == 0 and min(inner, default=0) > 0
