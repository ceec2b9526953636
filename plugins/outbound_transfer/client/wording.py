"""Texts from outside in a form that can be stored, sent and shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

#: Maximum characters of a redacted text.
MAX_LENGTH: Final = 500


def is_valid_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogates, and can therefore be stored and sent."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace every secret that a text of the service, a proxy or a driver quotes verbatim by ``***``.

    :return: one printable line of at most :data:`MAX_LENGTH` characters.
    """
    line = _one_line(text[:100_000])  # which bounds the work
    # The longest first, as a secret may begin with another one. A short one is masked as a whole word only: a gap in an
    # ordinary word would reveal it. The cut comes last: a part of a secret is not recognized.
    for secret in sorted(filter(None, map(_one_line, secrets)), key=len, reverse=True):
        pattern = re.escape(secret) if len(secret) > 4 else rf"(?<!\w){re.escape(secret)}(?!\w)"
        line = re.sub(pattern, "***", line)
    return line[:MAX_LENGTH]


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def hint_at_pair(given: object) -> str:
    """Return the end of an error about one of several things that is a list or a tuple; "" if it is neither.

    Airflow expands a mapping item by item.
    """
    hint = ". If it comes from expand() over a mapping, which gives each task a key and a value: expand over a list"
    return hint if isinstance(given, list | tuple) else ""
