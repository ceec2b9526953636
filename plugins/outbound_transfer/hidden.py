"""Values that must not be read in a log, a rendered field or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Hidden:
    """Wraps a secret: shown as ``***`` wherever Airflow or a log makes text of it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> str:
        return self._value


def hide(value: Any) -> Any:
    """``value`` wrapped, and masked in the task's log; nothing stays nothing."""
    if value is None or value == "" or isinstance(value, Hidden):
        return value
    from airflow.sdk.log import mask_secret

    mask_secret(str(value))
    return Hidden(str(value))


def hide_phones(recipients: Any) -> Any:
    """Recipients with every ``phone`` wrapped."""
    if isinstance(recipients, Mapping):
        return {key: hide(value) if key == "phone" else value for key, value in recipients.items()}
    # Any iterable, as the protocol takes it: the XComs of mapped tasks come as a sequence of Airflow's own.
    if isinstance(recipients, Iterable) and not isinstance(recipients, str | bytes):
        return [hide_phones(recipient) for recipient in recipients]
    return recipients


def reveal(value: Any) -> Any:
    """``value`` with every wrapped secret in it unwrapped, for the call that needs it."""
    if isinstance(value, Hidden):
        return value.reveal()
    if isinstance(value, Mapping):
        return {key: reveal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [reveal(item) for item in value]
    return value
