"""Parses recipients that are given as text, and decides which part of a recipient may be shown."""

from __future__ import annotations

import ast
import json
from typing import Any, Final

#: The fields of a recipient (service-api.md, R22); a phone is never shown.
RECIPIENT_FIELDS: Final = frozenset({"email", "name", "phone"})


def is_structured_text(given: Any) -> bool:
    """Return whether a text looks like JSON or Python: a list of recipients, or a recipient as a mapping."""
    return isinstance(given, str) and given.lstrip().startswith(("[", "{", "("))


def parse_text(given: Any) -> Any:
    """Parse a text of JSON, or of a Python list or mapping; return anything else unchanged.

    Templates of Airflow Variables render such texts: ``{{ var.value.board }}`` renders JSON, ``{{ var.json.board }}``
    renders Python.
    """
    if not is_structured_text(given):
        return given
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(given.strip())
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        # The order of a set differs between processes, so each try of a task would make another delivery.
        return value if isinstance(value, list | tuple | dict) else given
    return given


def is_safe_to_show(text: str) -> bool:
    """Return whether a text given as an address looks like one, and neither like a phone number nor like JSON."""
    return "@" in text and not set(text) & set('"()[]{}')


def show_address(text: str) -> str:
    """Return a text given as an address, or ``***`` if it may be something else."""
    return text if is_safe_to_show(text) else "***"
