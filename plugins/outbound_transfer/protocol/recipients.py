"""Recipients that come as text, and what of a recipient may be shown."""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Final

#: An address and nothing beside it: no list of them, no JSON, no number of a phone in the place of the domain.
_ADDRESS: Final = re.compile(r"[^\s@\"'()<>\[\]{},:;]+@(?![^@]*\d{4})[\w.-]+")


def begins_like_a_list(given: Any) -> bool:
    """Whether a text is meant as JSON or Python: a list of recipients, or one as a mapping."""
    return isinstance(given, str) and given.lstrip().startswith(("[", "{", "("))


def read_text(given: Any) -> Any:
    """What a text of JSON, or of a Python list or mapping, stands for; anything else as it is.

    Such a text is what a template makes of a Variable: ``{{ var.value.board }}`` its JSON, ``{{ var.json.board }}``
    what Python writes for it.
    """
    if not begins_like_a_list(given):
        return given
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(given.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        # A set has another order in each process, so each try would make another delivery of it.
        return value if isinstance(value, list | tuple | dict) else given
    return given


def may_be_shown(text: str) -> bool:
    """Whether a text in a recipient's place can hold no phone number."""
    return bool(_ADDRESS.fullmatch(text)) or not (begins_like_a_list(text) or any(map(str.isdigit, text)))


def shown(text: str) -> str:
    """A text in a recipient's place as an error may quote it: no digit where it may be one of a phone number."""
    return text if may_be_shown(text) else re.sub(r"\d", "#", text)
