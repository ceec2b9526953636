"""Checks of an operator's arguments: one list, run when the Dag is parsed and again when the task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from outbound_transfer.airflow_compat.rendering import is_unmapped
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.new_transfer import build_new_transfer, check_name
from outbound_transfer.files.content import Content, check_archive_name
from outbound_transfer.operators.recipients import MaskedValue, is_template, unmask
from outbound_transfer.store.config import check_prefix, check_schema
from outbound_transfer.store.destination import check_account
from outbound_transfer.waiting.wait import OUTCOMES
from outbound_transfer.wording import is_valid_unicode

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from outbound_transfer.files.find import FileSpec
    from outbound_transfer.operators.recipients import RecipientsFromSql

    TransferId: TypeAlias = str | Mapping[str, Any] | XComArg
    Files: TypeAlias = FileSpec | Iterable[FileSpec] | XComArg
    Recipients: TypeAlias = str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] | RecipientsFromSql | XComArg

#: Begins the error about several mistakes, as in ``build_new_transfer``.
_HEADING: Final = "The delivery is invalid, so nothing was created:\n- "


class Check(NamedTuple):
    """Argument names, and the function called with their values; its ValueError says what to write instead."""

    arguments: tuple[str, ...]
    check: Callable[..., object]


def check_literals(task: Any, checks: Iterable[Check], found_later: Set[str] = frozenset()) -> None:
    """Run the checks whose arguments are all literals, when the Dag is parsed. A mapped task is checked when it runs.

    :param found_later: arguments that may be left out, because the task finds their values when it runs.
    """
    if not is_unmapped(task):
        early = (each for each in checks if found_later.isdisjoint(each.arguments))
        check_all(task, [each for each in early if all(_is_literal(getattr(task, name)) for name in each.arguments)])


def check_all(task: Any, checks: Iterable[Check]) -> None:
    """Check a task's arguments; raise the error of a single mistake, or an :class:`.InvalidDelivery` that lists all."""
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


def _is_literal(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_literal, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_literal, value))
    return isinstance(value, str | int | float | timedelta | Content | MaskedValue | None) and not is_template(value)


def to_optional(value: Any) -> Any:
    """Return None for an empty string or "None", which a template without a value renders."""
    return None if isinstance(value, str) and value in ("", "None") else value


def check_text(argument: str, value: Any) -> str:
    """Return an argument that must be a string; with native rendering, a template turns ``12.50`` into a number."""
    if not isinstance(value, str):
        raise InvalidDelivery(
            f"{argument} must be a string, not {type(value).__name__}: quote it within the template, as in \"'12.50'\""
        )
    return value


def to_whole_number(argument: str, value: Any, minimum: int = 1, *, expected: str = "") -> int:
    """Convert an argument to a whole number; a rendered template is a string.

    :param expected: further valid values for the error message.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = minimum - 1
    if number < minimum:
        raise InvalidDelivery(f"{argument} must be a whole number of at least {minimum}{expected}, not {value!r:.100}")
    return number


def to_seconds(argument: str, value: Any) -> float:
    """Convert a duration to seconds; a rendered template is a number or a string."""
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidDelivery(f"{argument} must be a non-negative timedelta or number of seconds, not {value!r:.100}")
    return seconds


def resolve_transfer_id(given: Any) -> str:
    """Return a transfer's id, which may be given in a mapping, such as the result of the task that created it."""
    transfer_id = given.get("id") if isinstance(given, Mapping) else given
    # A template renders None as "None".
    if not isinstance(transfer_id, str) or transfer_id.strip() in ("", "None") or not is_valid_unicode(transfer_id):
        raise InvalidDelivery(
            "transfer_id must be a transfer's id or the result of the delivering task, not "
            f"{given!r:.100}. None usually means that the task pushed no XCom."
        )
    return transfer_id


def check_delivery_key(key: Any) -> None:
    """Refuse a key that a template without a value rendered, or that a database cannot show."""
    if key is None:
        return
    if check_text("delivery_key", key) in ("", "None") or key.strip() != key or not key.isprintable():
        raise InvalidDelivery(
            "delivery_key must be a string of printable characters without surrounding spaces, and not 'None', which "
            f"a template without a value renders: {key!r:.300}"
        )


def choice(argument: str, *allowed: str) -> Check:
    """Return a check that an argument is one of the allowed strings."""

    def check(value: Any) -> None:
        if value not in allowed:
            raise InvalidDelivery(f"{argument} must be one of {', '.join(allowed)}, not {value!r:.100}")

    return Check((argument,), check)


def optional(argument: str, check: Callable[[Any], object]) -> Check:
    """Return a check of an argument that may be left out."""
    return Check((argument,), lambda value: None if value is None or value == "" else check(value))


def _new_transfer(*arguments: str) -> Check:
    """Return a check of some arguments of a new transfer that assumes that the others are valid."""

    def check(*values: Any) -> None:
        right = {"subject": "later", "recipients": {"email": "later@example.com", "phone": "0"}}
        given = dict(zip(arguments, unmask(values), strict=True))
        for name in given.keys() - {"recipients"}:
            if given[name] is not None:
                check_text(name, given[name])
        if given.get("security") == "question":
            right |= {"security_question": "later", "security_answer": "later"}
        build_new_transfer(**{**right, **given})

    return Check(arguments, check)


def _check_some_file(files: Any) -> None:
    if not files:
        from outbound_transfer.files.find import NO_FILES

        raise InvalidDelivery(NO_FILES)


def _check_files(files: Any) -> None:
    listed = files if isinstance(files, list | tuple) else [files]
    if given := [each for each in listed if isinstance(each, Mapping)]:
        from outbound_transfer.files.find import parse_files

        parse_files(given)


def _check_checksums(name: Any) -> None:
    if not isinstance(name, str):
        raise InvalidDelivery(f"checksums must be the name of a file, such as SHA256SUMS, not {name!r:.100}")
    check_name(name)


def _check_wait(wait: Any, send: Any, ignored: Sequence[str]) -> None:
    if not isinstance(send, bool):
        raise InvalidDelivery(f"send must be True or False, not {send!r:.100}")
    if wait and not send:
        raise InvalidDelivery(
            "wait=True needs send=True: a draft cannot be picked up. Put a TransferSensor after the send"
        )
    if ignored:
        raise InvalidDelivery(f"{', '.join(ignored)} needs wait=True: without it, the task ends with the send")


TRANSFER_ID_CHECK: Final = Check(("transfer_id",), resolve_transfer_id)

SLOT_TIMEOUT_CHECK: Final = Check(("slot_timeout",), partial(to_seconds, "slot_timeout"))

#: Checks an account's name in the tables, which defaults to its site address.
ACCOUNT_CHECK: Final = optional("account", check_account)

#: Checks the arguments that locate tables.
TABLE_CHECKS: Final = (Check(("table_prefix",), check_prefix), Check(("schema",), check_schema))

TRANSFER_CHECKS: Final = (
    _new_transfer("subject"),
    _new_transfer("recipients"),
    _new_transfer("message"),
    _new_transfer("security"),
    _new_transfer("security", "security_question"),
    _new_transfer("security", "security_answer"),
    _new_transfer("security", "recipients"),
)

#: Checks files that may be left out because something else is delivered, too.
MORE_FILES_CHECKS: Final = (
    Check(("files",), _check_files),
    optional("archive", check_archive_name),
    optional("checksums", _check_checksums),
    Check(("max_parallel_uploads",), partial(to_whole_number, "max_parallel_uploads")),
)

FILES_CHECKS: Final = (Check(("files",), _check_some_file), choice("on_empty", "fail", "skip"), *MORE_FILES_CHECKS)

OUTCOME_CHECKS: Final = (choice("on_expired", *OUTCOMES), choice("on_canceled", *OUTCOMES))

DELIVERY_CHECKS: Final = (
    Check(("wait", "send", "_ignored"), _check_wait),
    SLOT_TIMEOUT_CHECK,
    Check(("delivery_key",), check_delivery_key),
    Check(("poke_interval",), partial(to_seconds, "poke_interval")),
    Check(("timeout",), lambda timeout: timeout is None or to_seconds("timeout", timeout)),
    *OUTCOME_CHECKS,
)
