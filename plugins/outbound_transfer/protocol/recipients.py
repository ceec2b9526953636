"""Parses recipients that are given as text, and decides which part of a recipient may be shown."""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Final

#: The fields of a recipient (service-api.md, R22); a phone is never shown.
RECIPIENT_FIELDS: Final = frozenset({"email", "name", "phone"})

#: A single address: no list of addresses, no JSON, no phone number instead of the domain.
_ADDRESS: Final = re.compile(r"[^\s@\"'()<>\[\]{},:;]+@(?![^@]*\d{4})[\w.-]+")


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
    """Return whether a text given as a recipient cannot contain a phone number."""
    return bool(_ADDRESS.fullmatch(text)) or not (is_structured_text(text) or any(map(str.isdigit, text)))


def mask_digits(text: str) -> str:
    """Mask the digits of a text given as a recipient, unless it is safe to show."""
    return text if is_safe_to_show(text) else re.sub(r"\d", "#", text)
