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


class _RepeatedKey(ValueError):
    """A mapping has a key more than once: JSON and Python keep the last value, and drop the others silently."""


def parse_text(given: Any) -> Any:
    """Parse a text of JSON, or of a Python list or mapping; return anything else unchanged.

    Templates of Airflow Variables render such texts: ``{{ var.value.board }}`` renders JSON, ``{{ var.json.board }}``
    renders Python. A text that repeats a key of a mapping is returned unchanged, too: see :func:`has_repeated_key`.
    """
    try:
        value = _parse_structured(given)
    except _RepeatedKey:
        return given
    # The order of a set differs between processes, so each try of a task would make another delivery.
    return value if isinstance(value, list | tuple | dict) else given


def has_repeated_key(given: Any) -> bool:
    """Return whether a text of JSON or Python has a mapping with a key more than once: which value is meant?"""
    try:
        _parse_structured(given)
    except _RepeatedKey:
        return True
    return False


def _parse_structured(given: Any) -> Any:
    """Return what a text of JSON or Python represents; None if it is not such a text.

    :raises _RepeatedKey: a mapping in it has a key more than once.
    """
    if not is_structured_text(given):
        return None
    for read in (_read_json, _read_python):
        try:
            return read(given.strip())
        except _RepeatedKey:
            raise
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique_keys)


def _read_python(text: str) -> Any:
    tree = ast.parse(text, mode="eval")
    value = ast.literal_eval(tree)  # first, as it refuses whatever is not plain data
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            _unique_keys([(ast.literal_eval(key), None) for key in node.keys if key])
    return value


def _unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _RepeatedKey
    return mapping


def is_safe_to_show(text: str) -> bool:
    """Return whether a text given as a recipient cannot contain a phone number."""
    return bool(_ADDRESS.fullmatch(text)) or not (is_structured_text(text) or any(map(str.isdigit, text)))


def mask_digits(text: str) -> str:
    """Mask the digits of a text given as a recipient, unless it is safe to show."""
    return text if is_safe_to_show(text) else re.sub(r"\d", "#", text)
