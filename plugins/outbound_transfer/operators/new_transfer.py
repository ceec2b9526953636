"""The arguments that describe a new transfer: rendered, masked and validated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.models import build_new_transfer
from outbound_transfer.client.wording import pluralize
from outbound_transfer.operators.recipients import RecipientsFromSql, mask_recipients
from outbound_transfer.operators.transfer_task import TransferTaskOperator
from outbound_transfer.tasks.arguments import to_repeatable
from outbound_transfer.tasks.masking import MaskedValue, find_secrets, mask, mask_phones, unmask

if TYPE_CHECKING:
    from outbound_transfer.client.models import NewTransfer
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook

#: Arguments that are a single text.
_TEXT_FIELDS: Final = ("subject", "message", "security", "security_question", "security_answer")

_FIELDS: Final = (*_TEXT_FIELDS, "recipients")


def _clean_rendered(name: str, template: Any, value: Any) -> Any:
    """Return a rendered text, with None for the text "None" that Airflow makes of a template without a value.

    ``security`` keeps the text "None", which is refused: the account's default, perhaps a weaker option, applies only
    if the argument is not given.
    """
    value = replace_none_texts(template, value)
    return "None" if name == "security" and isinstance(template, str) and value is None else value


def replace_none_texts(template: Any, value: Any) -> Any:
    """Return ``value`` with None for each template in ``template`` that rendered to "None"."""
    if isinstance(template, str):
        return None if "{" in template and isinstance(value, str) and value == "None" else value
    if isinstance(template, Mapping) and isinstance(value, Mapping):
        return {key: replace_none_texts(template.get(key), each) for key, each in value.items()}
    if isinstance(template, list | tuple) and isinstance(value, list | tuple) and len(template) == len(value):
        return [replace_none_texts(*each) for each in zip(template, value, strict=True)]
    return value


@contextmanager
def no_skip_after_send(delivery: Delivery) -> Iterator[None]:
    """Let nothing that the block calls skip a task that has sent, or may have: a skip says that it has not.

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


class NewTransferOperator(TransferTaskOperator):
    """An operator with the arguments that describe a new transfer."""

    template_fields: Sequence[str] = (*TransferTaskOperator.template_fields, *_FIELDS)

    #: Arguments that may be left out, or are replaced, when the task runs.
    found_later: AbstractSet[str] = frozenset()

    def __init__(
        self,
        *,
        subject: str,
        recipients: Any,
        message: str | None = None,
        security: str | None = None,
        security_question: str | None = None,
        security_answer: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.subject = subject
        self.recipients = to_repeatable(recipients)
        self.message = message
        self.security = security
        self.security_question = security_question
        self.security_answer = security_answer
        self._check_known_transfer()

    def _check_known_transfer(self) -> None:
        """Validate what is known when the DAG is parsed, as the task will; the rest is taken to be right.

        :raises InvalidDelivery: listing every mistake.
        """
        given = {name: getattr(self, name) for name in _FIELDS if name not in self.found_later and self.is_known(name)}
        security = given.get("security")
        if "security" not in given:
            given = {name: value for name, value in given.items() if not name.startswith("security")}
        secret = "later" if security == "question" else None
        phone = "0" if security == "sms" else None
        right = {"subject": "later", "recipients": {"email": "later@example.com", "phone": phone}}
        build_new_transfer(**{**right, "security_question": secret, "security_answer": secret, **given})

    def _do_render_template_fields(self, parent: Any, template_fields: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(parent, RecipientsFromSql):
            # Airflow logs a field that fails to render, and these parameters are never shown.
            parent.parameters = self.render_template(parent.parameters, *args, **kwargs)
            template_fields = [name for name in template_fields if name != "parameters"]
        # Airflow stores and shows rendered fields; their secrets are masked before it does.
        if isinstance(self.recipients, Mapping | list | tuple):
            mask_phones(self.recipients)  # Airflow logs a template that fails to render
        templates, recipients = {name: getattr(self, name) for name in _TEXT_FIELDS}, self.recipients
        if isinstance(recipients, RecipientsFromSql):
            self.recipients = copy(recipients)  # its templates are rendered in place, for this task instance alone
        try:
            super()._do_render_template_fields(parent, template_fields, *args, **kwargs)
        except BaseException:
            self.security_answer, self.recipients = mask(self.security_answer), MaskedValue(self.recipients)
            raise
        if parent is self:  # and not for an argument that has its own templates
            for name, template in templates.items():
                setattr(self, name, _clean_rendered(name, template, getattr(self, name)))
            self.recipients = replace_none_texts(recipients, self.recipients)
            self.security_answer = mask(self.security_answer)
            self.recipients = mask_recipients(self.recipients)

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        secrets = find_secrets([self.security_answer, self.recipients])
        return super().hook(secrets=tuple(secrets), **client_options)

    def load_recipients(self, delivery: Delivery) -> None:
        """Run the query for the recipients, if there is one; from then on their phones are masked.

        :raises InvalidDelivery: it returns no row, or none that is a recipient.
        :raises AirflowSkipException: it returns no row, and the task is to be skipped then.
        """
        query = self.recipients
        if not isinstance(query, RecipientsFromSql):
            return
        rows = query.load()
        self.log.info("The query for the recipients returned %s", pluralize(len(rows), "row"))
        if not rows:
            reason = "The query for the recipients returned no row: nothing is delivered"
            if query.on_empty == "skip":
                raise AirflowSkipException(reason)
            raise InvalidDelivery(reason)
        self.recipients = mask_phones(rows)
        delivery.client.add_secrets(find_secrets(self.recipients))

    def new_transfer(self) -> NewTransfer:
        """Return the draft to create, validated.

        :raises InvalidDelivery: listing every mistake.
        """
        return build_new_transfer(
            subject=self.subject,
            recipients=unmask(self.recipients),
            message=self.message,
            security=self.security,
            security_question=self.security_question,
            security_answer=unmask(self.security_answer),
        )
