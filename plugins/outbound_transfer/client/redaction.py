"""Makes a text of the service, a proxy or a driver safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

#: Maximum characters of a redacted text.
MAX_LENGTH: Final = 500

#: Characters of a text that are read, which bounds the work.
_MAX_READ: Final = 100_000

#: Shorter secrets are masked as whole words only: a gap in an ordinary word would reveal them.
_MIN_PART_LENGTH: Final = 5


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace every secret that a text quotes verbatim by ``***``.

    :return: one printable line of at most :data:`MAX_LENGTH` characters.
    """
    known = sorted(set(map(_one_line, secrets)) - {""}, key=len, reverse=True)  # a secret may begin with another one
    patterns = (
        re.escape(each) if len(each) >= _MIN_PART_LENGTH else rf"(?<!\w){re.escape(each)}(?!\w)" for each in known
    )
    line = _one_line(text[:_MAX_READ])
    # Mask first and cut then: a part of a secret is not recognized.
    return (re.sub("|".join(patterns), "***", line) if known else line)[:MAX_LENGTH]


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
