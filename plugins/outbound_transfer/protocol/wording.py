"""Words for people: counts with their nouns."""

from __future__ import annotations


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 file``, ``2 files``, ``0 files``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
