"""The arguments that describe a new transfer: checked, loaded and hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.airflow_compat.rendering import is_unmapped
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.new_transfer import build_new_transfer
from outbound_transfer.operators.arguments import Check, is_literal, to_repeatable, without_none
from outbound_transfer.operators.masking import find_secrets, mask, mask_phones, unmask
from outbound_transfer.operators.recipients import RecipientsFromSql, mask_recipients
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from outbound_transfer.client.new_transfer import NewTransfer
    from outbound_transfer.delivery.delivery import Delivery

TRANSFER_FIELDS: Final = ("subject", "recipients", "message", "security", "security_question", "security_answer")


def _check(**given: Any) -> None:
    """Check some of the arguments, as if the others were right."""
    if given.get("security") == "question":
        given = {"security_question": "later", "security_answer": "later", **given}
    build_new_transfer(**{"subject": "later", "recipients": {"email": "later@example.com", "phone": "0"}, **given})


def _check_phones(security: Any, recipients: Any) -> None:
    if security == "sms":
        _check(security=security, recipients=unmask(recipients))


TRANSFER_CHECKS: Final = (
    Check(("subject",), lambda subject: _check(subject=subject)),
    Check(("recipients",), lambda recipients: _check(recipients=unmask(recipients))),
    Check(("message",), lambda message: _check(message=message)),
    Check(("security",), lambda security: _check(security=security)),
    Check(
        ("security", "security_question"),
        lambda security, question: _check(security=security, security_question=question),
    ),
    Check(
        ("security", "security_answer"),
        lambda security, answer: _check(security=security, security_answer=unmask(answer)),
    ),
    Check(("security", "recipients"), _check_phones),
)


def given_recipients(task: Any, recipients: Any) -> Any:
    """Return recipients as a task keeps them: for each try, and without the phones of a Dag file in sight."""
    recipients = to_repeatable(recipients)
    # Airflow knows by its identity what another task has returned.
    return mask_phones(recipients) if is_literal(recipients) and not is_unmapped(task) else recipients


def given_answer(task: Any, answer: Any) -> Any:
    """Return a security answer as a task keeps it: that of a Dag file is not in sight."""
    return mask(answer) if is_literal(answer) and not is_unmapped(task) else answer


def prepare_new_transfer(task: Any) -> None:
    """Prepare the arguments to be rendered, in each attempt."""
    if isinstance(task.recipients, RecipientsFromSql):  # whose templates are rendered in place
        task.recipients = task.recipients.of_one_task()
    elif isinstance(task.recipients, Mapping | list | tuple):
        mask_phones(task.recipients)  # Airflow logs a template that fails to render, with what is beside it


def hide_new_transfer(task: Any, given: Mapping[str, Any]) -> None:
    """Hide the secrets of rendered arguments, and take the text of a template without a value as no value.

    :param given: the arguments as they were before.
    """
    for name in TRANSFER_FIELDS:
        setattr(task, name, without_none(given.get(name), getattr(task, name)))
    if task.security is None and isinstance(given.get("security"), str):
        task.security = ""  # which is refused: the account's default may be weaker than what was to be given
    task.security_answer = mask(task.security_answer)
    task.recipients = mask_recipients(unmask(task.recipients))


def secrets_of(task: Any) -> tuple[str, ...]:
    """Return the texts that no error of a call may quote."""
    return tuple(find_secrets([task.security_answer, task.recipients]))


def load_recipients(task: Any, delivery: Delivery) -> None:
    """Run the query for the recipients, if there is one; from then on their phones are masked.

    :raises InvalidDelivery: it returns no row, or none that is a recipient.
    :raises AirflowSkipException: it returns no row, and the task is to be skipped then.
    """
    query = task.recipients
    if not isinstance(query, RecipientsFromSql):
        return
    rows = query.load()
    task.log.info("The query for the recipients returned %s", pluralize(len(rows), "row"))
    if not rows:
        reason = "The query for the recipients returned no row: nothing is delivered"
        raise AirflowSkipException(reason) if query.on_empty == "skip" else InvalidDelivery(reason)
    task.recipients = mask_phones(rows)
    delivery.client.secrets.update(find_secrets(task.recipients))


def new_transfer(task: Any) -> NewTransfer:
    """Return the draft to create.

    :raises InvalidDelivery: listing every mistake.
    """
    return build_new_transfer(**{name: unmask(getattr(task, name)) for name in TRANSFER_FIELDS})


@contextmanager
def no_skip_after_send(delivery: Delivery) -> Iterator[None]:
    """Turn a skip into an error if the task has sent its transfer, or may have: a skip says that it has not.

    :raises InvalidDelivery: instead of the skip.
    """
    try:
        yield
    except AirflowSkipException as skip:
        if delivery.may_have_sent:
            raise InvalidDelivery(
                "The task cannot be skipped any more, as an earlier try has sent its delivery, or may have. What was "
                f"to skip it: {skip or 'AirflowSkipException'}"
            ) from skip
        raise
