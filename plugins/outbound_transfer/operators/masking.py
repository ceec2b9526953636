"""Keep the secrets of a delivery out of logs, rendered fields and errors.

Not pydantic's ``SecretStr``: what is wrapped may be a whole list of recipients, and an object with a ``__dict__`` gives
its secret to whatever prints attributes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from outbound_transfer.airflow_compat import names
from outbound_transfer.client.new_transfer import show_address

#: The beginning of an expression, a statement or a comment.
_TEMPLATE: Final = re.compile("{[{%#]")


class MaskedValue:
    """Wraps a secret: Airflow and logs show it as ``***``."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "***"

    def get_secret_value(self) -> Any:
        """Return the secret."""
        return self._value


def mask(value: Any) -> Any:
    """Wrap a secret, and have the task's log mask it. None and "" are returned as they are."""
    if value is None or value == "" or isinstance(value, MaskedValue) or hasattr(value, "resolve"):
        return value  # the last is another task's result, which is not there yet
    for text in _texts(value):
        names.mask_secret(text)
    return MaskedValue(value)


def parse_text(given: Any) -> Any:
    """Parse a text of JSON, or of a Python list or mapping; return anything else unchanged.

    Templates of Airflow Variables render such texts: ``{{ var.value.board }}`` renders JSON, ``{{ var.json.board }}``
    renders Python.
    """
    if not isinstance(given, str) or not given.lstrip().startswith(("[", "{", "(")):
        return given
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            value = read(given.strip())
            # The order of a set differs between processes, so each try of a task would make another delivery.
            return value if isinstance(value, list | tuple | dict) else given
    return given


def mask_phones(recipients: Any) -> Any:
    """Wrap everything about recipients that is neither an address nor a name.

    A text of JSON or Python is replaced by the value that it represents.
    """
    recipients = parse_text(recipients)
    if isinstance(recipients, str):
        return recipients if show_address(recipients) == recipients else mask(recipients)
    if isinstance(recipients, Mapping):
        return {field: value if _may_show(field, value) else mask(value) for field, value in recipients.items()}
    # Any iterable, as the protocol accepts it: the XComs of mapped tasks come as a sequence of Airflow's own.
    is_listed = isinstance(recipients, Iterable) and not isinstance(recipients, bytes | bytearray)
    if is_listed and not hasattr(recipients, "resolve"):
        return [mask_phones(recipient) for recipient in recipients]
    return mask(recipients)


def mask_literals(value: Any) -> Any:
    """Wrap every text and number in plain data that is no template."""
    if isinstance(value, Mapping):
        return {key: mask_literals(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(mask_literals, value))
    return value if isinstance(value, str) and is_template(value) else mask(value)


def is_template(text: str) -> bool:
    """Return whether Jinja would find something to render in a text."""
    return bool(_TEMPLATE.search(text))


def unmask(value: Any) -> Any:
    """Return ``value`` with every wrapped secret in it unwrapped, for the call that needs it."""
    if isinstance(value, MaskedValue):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {key: unmask(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(unmask, value))
    return value


def find_secrets(value: Any) -> Iterator[str]:
    """Yield the texts that are wrapped in ``value``."""
    if isinstance(value, MaskedValue):
        yield from _texts(value.get_secret_value())
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from find_secrets(item)


def _may_show(field: str, value: Any) -> bool:
    return isinstance(value, str) and (field == "name" or (field == "email" and show_address(value) == value))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text and number in plain data of any depth, as text."""
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str | int | float):
        yield str(value)
    elif isinstance(value, Mapping | list | tuple | set | frozenset):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)
