"""Validate arguments of operators. A rendered template gives a number as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.client.errors import InvalidDelivery


def is_fixed(value: Any) -> bool:
    """Return whether an argument has its value when the DAG is parsed: it is no template, and no task's result."""
    if isinstance(value, str):
        return "{" not in value
    if isinstance(value, Mapping):
        return all(map(is_fixed, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_fixed, value))
    return isinstance(value, int | float | timedelta | None)


def to_repeatable(value: Any) -> Any:
    """Return the items of an iterator as a list, and anything else, such as a file, as it is.

    A generator is consumed by the first try: a retry in the same process would deliver less, or to fewer people.
    """
    return list(value) if isinstance(value, Iterator) and not hasattr(value, "read") else value


def to_whole_number(value: int | str, argument: str, minimum: int = 1, *, expected: str = "") -> int:
    """Convert an argument to a whole number.

    :param argument: its name in the error.
    :param expected: what the error names as possible, too.
    :raises AirflowFailException: it is not a number, or less than ``minimum``.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = minimum - 1
    if number < minimum:
        raise AirflowFailException(f"{argument} must be a whole number from {minimum} on{expected}, not {value!r:.100}")
    return number


def require_choice(argument: str, value: Any, allowed: Sequence[str]) -> None:
    """:raises InvalidDelivery: it is not one of those that are allowed."""
    if value not in allowed:
        raise InvalidDelivery(f"{argument} is one of {', '.join(allowed)}, not {value!r:.100}")
