"""Values that must not be read in a log, a rendered field or an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

#: What a recipient may have; of the last nothing is shown.
_FIELDS: Final = {"email", "name", "phone"}

#: A text or number with fewer digits is not taken for a phone number where it is not called one.
_DIGITS_OF_A_PHONE: Final = 5


class Hidden:
    """Wraps a secret: shown as ``***`` wherever Airflow or a log makes text of it."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> Any:
        return self._value


def hide(value: Any) -> Any:
    """``value`` wrapped, a number as text, and masked in the task's log; nothing stays nothing."""
    if value is None or value == "" or isinstance(value, Hidden):
        return value
    if isinstance(value, int | float):
        value = str(value)
    _mask([value] if isinstance(value, str) else _phones_in(value))
    return Hidden(value)


def hide_phones(recipients: Any) -> Any:
    """Recipients with every ``phone`` wrapped, and with anything else that may hold one.

    A text of JSON or Python becomes what it stands for.
    """
    from outbound_transfer.protocol.recipients import may_be_shown, read_text

    recipients = read_text(recipients)
    if recipients is None or isinstance(recipients, str):
        return recipients if recipients is None or may_be_shown(recipients) else hide(recipients)
    if isinstance(recipients, Mapping):
        return _hide_phone(recipients)
    # Any iterable, as the protocol takes it: the XComs of mapped tasks come as a sequence of Airflow's own.
    if isinstance(recipients, Iterable) and not isinstance(recipients, bytes | bytearray):
        return [hide_phones(recipient) for recipient in recipients]
    return hide(recipients)


def mask_phones(recipients: Any) -> None:
    """Mask what may be a phone number in the task's log, and change nothing."""
    _mask(_phones_in(recipients))


def reveal(value: Any) -> Any:
    """``value`` with every wrapped secret in it unwrapped, for the call that needs it."""
    if isinstance(value, Hidden):
        return value.reveal()
    if isinstance(value, Mapping):
        return {key: reveal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [reveal(item) for item in value]
    return value


def secrets_in(value: Any) -> Iterator[str]:
    """The texts that are wrapped in ``value``."""
    if isinstance(value, Hidden):
        secret = value.reveal()
        yield from [secret] if isinstance(secret, str) else _phones_in(secret)
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from secrets_in(item)


def _hide_phone(recipient: Mapping[Any, Any]) -> Any:
    # A field that the service does not know is refused later; until then it may be a phone number by another name.
    if not set(recipient) <= _FIELDS:
        return hide(recipient)
    return {field: value if _is_shown(field, value) else hide(value) for field, value in recipient.items()}


def _is_shown(field: str, value: Any) -> bool:
    from outbound_transfer.protocol.recipients import may_be_shown

    if not isinstance(value, str):
        return value is None
    return may_be_shown(value) if field == "email" else field == "name" and not any(_phones_in(value))


def _phones_in(value: Any) -> Iterator[str]:
    """What may be a phone number in plain data of any depth."""
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str | int | float):
        if sum(map(str.isdigit, str(value))) >= _DIGITS_OF_A_PHONE:
            yield str(value)
    elif isinstance(value, Mapping):
        for field, item in value.items():
            yield from _phones_in(field)
            yield from _phones_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _phones_in(item)


def _mask(secrets: Iterable[str]) -> None:
    from airflow.sdk.log import mask_secret

    for secret in secrets:
        mask_secret(secret)
        digits = "".join(filter(str.isdigit, secret))
        if digits != secret and len(digits) >= _DIGITS_OF_A_PHONE:
            mask_secret(digits)
