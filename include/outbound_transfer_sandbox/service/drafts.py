"""What a new transfer may look like (service.md, POST /v1/transfers)."""

from __future__ import annotations

from typing import Annotated

from email_validator import EmailNotValidError, validate_email
from msgspec import Meta, Struct

from outbound_transfer_sandbox import unspecified
from outbound_transfer_sandbox.errors import ApiError, invalid_request
from outbound_transfer_sandbox.models import Account, Draft, Recipient, Security

from . import passwords

_NO_NUL = r"^[^\x00]*$"

Text = Annotated[str, Meta(pattern=_NO_NUL)]


class NewRecipient(Struct, forbid_unknown_fields=True, frozen=True):
    email: Text
    name: Text | None = None
    phone: Text | None = None


class NewTransfer(Struct, forbid_unknown_fields=True, frozen=True):
    """The body of POST /v1/transfers. Types and lengths are checked by decoding it."""

    subject: Annotated[str, Meta(min_length=1, pattern=_NO_NUL)]
    recipients: Annotated[list[NewRecipient], Meta(min_length=1, max_length=250)]
    message: Annotated[str, Meta(max_length=2000, pattern=_NO_NUL)] | None = None
    security: Security | None = None
    security_question: Text | None = None
    security_answer: Text | None = None


def check(body: NewTransfer, account: Account) -> Draft:
    """The draft that `body` asks for.

    Raises 400 invalid_request for a malformed address and for what the security option lacks or does not use (rules 1,
    3, 5), 403 auth_option_not_enabled for an option that the account does not have (rule 4).
    """
    recipients = [_recipient(number, recipient) for number, recipient in enumerate(body.recipients)]
    security = body.security or account.default_security
    _check_question(security, body)
    if security == "sms":
        _check_phones(recipients)
    if security not in account.security_options:
        raise ApiError(403, "auth_option_not_enabled", f"security: {security} is not available to this account.")
    return Draft(
        subject=body.subject,
        message=body.message,
        security=security,
        security_question=body.security_question,
        security_answer=body.security_answer and passwords.hashed(passwords.normalized(body.security_answer)),
        recipients=recipients,
    )


def _recipient(number: int, recipient: NewRecipient) -> Recipient:
    if len(recipient.email) > unspecified.MAX_ADDRESS:  # before the library compares and normalizes all of it
        raise invalid_request(f"recipients[{number}].email is malformed: it is too long.")
    try:
        # test_environment lets names under .test pass; whether mail can be delivered there is not the question.
        address = validate_email(recipient.email, check_deliverability=False, test_environment=True)
    except EmailNotValidError as error:
        raise invalid_request(f"recipients[{number}].email is malformed: {error}") from None
    return Recipient(recipient.email, recipient.name or address.local_part, recipient.phone)


def _check_question(security: str, body: NewTransfer) -> None:
    fields = {"security_question": body.security_question, "security_answer": body.security_answer}
    for name, value in fields.items():
        if security == "question" and not value:
            raise invalid_request(f"{name} is required with security question.")
        if security != "question" and value is not None:
            raise invalid_request(f"{name} is not used with security {security}.")


def _check_phones(recipients: list[Recipient]) -> None:
    for number, recipient in enumerate(recipients):
        digits = "".join(c for c in recipient.phone or "" if c.isalnum())
        if not (digits.isascii() and digits.isdigit()):
            raise invalid_request(f"recipients[{number}].phone must be digits with security sms.")
