"""Checks of an operator's arguments: one list, run when the Dag is parsed and again when the task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from outbound_transfer.airflow_compat.rendering import is_unmapped
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.wording import is_valid_unicode
from outbound_transfer.files.content import Content
from outbound_transfer.operators.masking import MaskedValue, is_template
from outbound_transfer.store.destination import check_account
from outbound_transfer.store.naming import check_prefix, check_schema

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from outbound_transfer.files.find import FileSpec
    from outbound_transfer.operators.recipients import RecipientsFromSql

    #: A transfer: its id, or the result of the task that made it.
    TransferId: TypeAlias = str | Mapping[str, Any] | XComArg

    #: One or several files.
    Files: TypeAlias = FileSpec | Iterable[FileSpec] | XComArg

    #: One or several addresses, or mappings with ``email`` and optionally ``name`` and ``phone``; or a query for them.
    Recipients: TypeAlias = str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] | RecipientsFromSql | XComArg


#: Of several mistakes, as of a new transfer.
_HEADING: Final = "The delivery cannot be made, nothing was created:\n- "


class Check(NamedTuple):
    """A check of some arguments together.

    :ivar arguments: names; the check is called with their values, in this order.
    :ivar check: raises a ValueError, such as :class:`.InvalidDelivery`, that says what to write instead.
    """

    arguments: tuple[str, ...]
    check: Callable[..., object]


def check_literals(task: Any, checks: Iterable[Check], found_later: Set[str] = frozenset()) -> None:
    """Run the checks whose arguments are all literals, so that a Dag file with a mistake does not parse.

    A mapped task is checked when it runs.

    :param found_later: arguments that may be left out, as the task finds their values.
    :raises ValueError: see :func:`check_all`.
    """
    if not is_unmapped(task):
        early = (each for each in checks if found_later.isdisjoint(each.arguments))
        check_all(task, [each for each in early if all(is_literal(getattr(task, name)) for name in each.arguments)])


def check_all(task: Any, checks: Iterable[Check]) -> None:
    """Run checks on the arguments of a task.

    :raises ValueError: the one mistake, or an :class:`.InvalidDelivery` with all of them.
    """
    mistakes: dict[str, Exception] = {}
    for arguments, check in checks:
        try:
            check(*(getattr(task, name) for name in arguments))
        except ValueError as mistake:
            mistakes[str(mistake)] = mistake
    if len(mistakes) > 1:
        lines = [line for text in mistakes for line in text.removeprefix(_HEADING).split("\n- ")]
        raise InvalidDelivery(_HEADING + "\n- ".join(dict.fromkeys(lines)))
    for only in mistakes.values():
        raise only


def is_literal(value: Any) -> bool:
    """Return whether an argument has its value when the Dag is parsed: it is no template, and no task's result."""
    if isinstance(value, str):
        return not is_template(value)
    if isinstance(value, Mapping):
        return all(map(is_literal, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_literal, value))
    return isinstance(value, int | float | timedelta | Content | MaskedValue | None)


def to_repeatable(value: Any) -> Any:
    """Return the items of an iterator as a list, and anything else, such as a file, as it is.

    A generator is consumed by the first try: a retry in the same process would deliver less, or to fewer people.
    """
    return list(value) if isinstance(value, Iterator) and not hasattr(value, "read") else value


def without_none(template: Any, value: Any) -> Any:
    """Return a rendered value with None for the text "None" that Airflow makes of a template without a value."""
    if isinstance(template, str):
        return None if value == "None" and is_template(template) else value
    if isinstance(template, Mapping) and isinstance(value, Mapping):
        return {key: without_none(template.get(key), each) for key, each in value.items()}
    if isinstance(template, list | tuple) and isinstance(value, list | tuple) and len(template) == len(value):
        return [without_none(*each) for each in zip(template, value, strict=True)]
    return value


def to_optional(value: Any) -> Any:
    """Return None for an empty text, and for "None", which a template without a value gives."""
    return None if isinstance(value, str) and value in ("", "None") else value


def to_whole_number(argument: str, value: Any, minimum: int = 1, *, expected: str = "") -> int:
    """Convert an argument to a whole number; a rendered template gives it as text.

    :param expected: what the error names as possible, too.
    :raises InvalidDelivery: it is not a number, or less than ``minimum``.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = minimum - 1
    if number < minimum:
        raise InvalidDelivery(f"{argument} must be a whole number from {minimum} on{expected}, not {value!r:.100}")
    return number


def to_seconds(argument: str, value: Any) -> float:
    """Convert a duration to seconds; a rendered template gives it as a number, or as text.

    :raises InvalidDelivery: it is neither a timedelta nor a number of seconds from 0 on.
    """
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidDelivery(f"{argument} must be a timedelta or a number of seconds from 0 on, not {value!r:.100}")
    return seconds


def require_choice(argument: str, value: Any, allowed: Sequence[str]) -> None:
    """:raises InvalidDelivery: it is not one of those that are allowed."""
    if value not in allowed:
        raise InvalidDelivery(f"{argument} is one of {', '.join(allowed)}, not {value!r:.100}")


def resolve_transfer_id(given: Any) -> str:
    """Return the id of a transfer.

    :param given: the id, or a mapping with the key ``id``: the result of the task that made the delivery.
    :raises InvalidDelivery: it is neither, for example None from the XCom of a task that pushed nothing.
    """
    transfer_id = given.get("id") if isinstance(given, Mapping) else given
    # A template renders None as "None".
    if not isinstance(transfer_id, str) or transfer_id.strip() in ("", "None") or not is_valid_unicode(transfer_id):
        raise InvalidDelivery(
            "transfer_id must be the id of a transfer, or the result of the task that made the delivery, not "
            f"{given!r:.100}. None usually means that the task pushed no XCom."
        )
    return transfer_id


def check_delivery_key(delivery_key: Any) -> str:
    """Return the key if it can be one.

    :raises InvalidDelivery: a template without a value has made it, or a database cannot show it.
    """
    key = delivery_key if isinstance(delivery_key, str) else ""
    if key in ("", "None") or key != key.strip() or not key.isprintable():
        raise InvalidDelivery(
            "delivery_key must be a text of printable characters without spaces around them, and not 'None', which a "
            f"template without a value gives: {delivery_key!r:.300}"
        )
    return key


TRANSFER_ID_CHECK: Final = Check(("transfer_id",), resolve_transfer_id)

SLOT_TIMEOUT_CHECK: Final = Check(("slot_timeout",), lambda timeout: to_seconds("slot_timeout", timeout))


def _check_account(account: Any) -> None:
    if account:
        check_account(account)


#: Of the name of an account in tables; by default that of its site.
ACCOUNT_CHECK: Final = Check(("account",), _check_account)

#: Of the arguments that say where tables are.
TABLE_CHECKS: Final = (Check(("table_prefix",), check_prefix), Check(("schema",), check_schema))
