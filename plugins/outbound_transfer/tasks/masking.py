"""Keep the secrets of a delivery out of logs, rendered fields and errors.

Not pydantic's ``SecretStr``: what is wrapped may be a whole list of recipients, and an object with a ``__dict__`` gives
its secret to whatever prints attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from outbound_transfer.airflow_compat import names
from outbound_transfer.protocol.recipients import RECIPIENT_FIELDS, is_safe_to_show, parse_text

#: A text or number with fewer digits is not a phone number, unless it stands in the field ``phone``.
_MIN_PHONE_DIGITS: Final = 5


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
    """Wrap a secret, a number as text, and have the task's log mask it. None and "" are returned as they are."""
    if value is None or value == "" or isinstance(value, MaskedValue):
        return value
    if isinstance(value, int | float):
        value = str(value)
    _mask_in_log([value] if isinstance(value, str) else _find_phones(value))
    return MaskedValue(value)


def mask_phones(recipients: Any) -> Any:
    """Wrap every ``phone`` of the recipients, and any other value that may contain a phone number.

    A text of JSON or Python is replaced by the value that it represents.
    """
    recipients = parse_text(recipients)
    if recipients is None or isinstance(recipients, str):
        return recipients if recipients is None or is_safe_to_show(recipients) else mask(recipients)
    if isinstance(recipients, Mapping):
        return _mask_recipient(recipients)
    # Any iterable, as the protocol accepts it: the XComs of mapped tasks come as a sequence of Airflow's own.
    if isinstance(recipients, Iterable) and not isinstance(recipients, bytes | bytearray):
        return [mask_phones(recipient) for recipient in recipients]
    return mask(recipients)


def mask_phones_in_log(recipients: Any) -> None:
    """Have the task's log mask every possible phone number; the value stays as it is."""
    _mask_in_log(_find_phones(recipients))


def unmask(value: Any) -> Any:
    """Return ``value`` with every wrapped secret in it unwrapped, for the call that needs it."""
    if isinstance(value, MaskedValue):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {key: unmask(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unmask(item) for item in value]
    return value


def find_secrets(value: Any) -> Iterator[str]:
    """Yield the texts that are wrapped in ``value``."""
    if isinstance(value, MaskedValue):
        secret = value.get_secret_value()
        yield from [secret] if isinstance(secret, str) else _find_phones(secret)
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from find_secrets(item)


def _mask_recipient(recipient: Mapping[Any, Any]) -> Any:
    # A field that the service does not know is refused later; until then it may be a phone number by another name.
    if not set(recipient) <= RECIPIENT_FIELDS:
        return mask(recipient)
    return {field: value if _may_show(field, value) else mask(value) for field, value in recipient.items()}


def _may_show(field: str, value: Any) -> bool:
    if not isinstance(value, str):
        return value is None
    return is_safe_to_show(value) if field == "email" else field == "name" and not any(_find_phones(value))


def _find_phones(value: Any) -> Iterator[str]:
    """Yield every possible phone number in plain data of any depth."""
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str | int | float):
        if sum(map(str.isdigit, str(value))) >= _MIN_PHONE_DIGITS:
            yield str(value)
    elif isinstance(value, Mapping):
        for field, item in value.items():
            yield from _find_phones(field)
            yield from _find_phones(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _find_phones(item)


def _mask_in_log(secrets: Iterable[str]) -> None:
    for secret in secrets:
        names.mask_secret(secret)
        digits = "".join(filter(str.isdigit, secret))
        if digits != secret and len(digits) >= _MIN_PHONE_DIGITS:
            names.mask_secret(digits)
