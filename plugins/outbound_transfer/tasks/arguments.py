"""Validate arguments of operators. A rendered template gives a number as text."""

from __future__ import annotations

from outbound_transfer.airflow_compat.names import AirflowFailException


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
