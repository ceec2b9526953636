"""Calls of notifiers that a task is given: of any kind, and none of them ends the task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import AirflowFailException, BaseNotifier, redact
from outbound_transfer.client.wording import clean

if TYPE_CHECKING:
    from airflow.sdk.types import Logger


def to_items(given: Any) -> tuple[Any, ...]:
    """Return the items of a sequence, or a single value as the only one."""
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def to_notifiers(given: Any, expected: str) -> tuple[BaseNotifier, ...]:
    """Return the notifiers of an argument.

    :param expected: what the argument must be.
    :raises AirflowFailException: there is none, or one of another kind.
    """
    notifiers = to_items(given)
    if notifiers and all(isinstance(each, BaseNotifier) for each in notifiers):
        return notifiers
    kinds = ", ".join(type(each).__name__ for each in notifiers)  # a value may be a secret, such as a webhook
    raise AirflowFailException(f"{expected}, not {kinds or 'none'}")


def call_notifiers(notifiers: Iterable[BaseNotifier], context: Any, log: Logger) -> None:
    """Call each notifier with the context. A failure is logged, as it must not end what is announced."""
    for notifier in notifiers:
        try:
            copy(notifier)(context)  # it renders its own templates, for good
        except Exception as error:
            log.warning(
                "%s failed, and is not called again for this; the task continues. Check its arguments and its "
                "connection: %s",
                type(notifier).__name__,
                clean(redact(f"{type(error).__name__}: {error}"), 500),
            )
