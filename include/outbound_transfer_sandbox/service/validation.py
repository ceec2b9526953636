"""Validation of new drafts (service-api.md, R22 to R25)."""

from __future__ import annotations

from typing import Annotated

from email_validator import EmailNotValidError, validate_email
from msgspec import Meta, Struct

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.errors import ApiError, invalid_request
from outbound_transfer_sandbox.domain.models import Account, Draft, Recipient, Security

from . import passwords

_NO_NUL = r"^[^\x00]*$"

Text = Annotated[str, Meta(pattern=_NO_NUL)]


class NewRecipient(Struct, forbid_unknown_fields=True, frozen=True):
    email: Text
    name: Text | None = None
    phone: Text | None = None


class NewTransfer(Struct, forbid_unknown_fields=True, frozen=True):
    """The body of `POST /v1/transfers`. Decoding checks types and lengths."""

    subject: Annotated[str, Meta(min_length=1, pattern=_NO_NUL)]
    recipients: Annotated[list[NewRecipient], Meta(min_length=1, max_length=250)]
    message: Annotated[str, Meta(max_length=2000, pattern=_NO_NUL)] | None = None
    security: Security | None = None
    security_question: Text | None = None
    security_answer: Text | None = None


def validate_draft(body: NewTransfer, account: Account) -> Draft:
    """Return the draft that `body` describes.

    Raises 400 invalid_request for a malformed address and for missing or unused security fields (R23 to R25),
    403 auth_option_not_enabled for an option that the account does not have (R24).
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
        security_answer=body.security_answer
        and passwords.hash_secret(passwords.normalize_answer(body.security_answer)),
        recipients=recipients,
    )


def _recipient(number: int, recipient: NewRecipient) -> Recipient:
    if len(recipient.email) > defaults.MAX_ADDRESS_LENGTH:  # the library would process the whole text
        raise invalid_request(f"recipients[{number}].email is malformed: it is too long.")
    try:
        # test_environment accepts names under .test. The sandbox delivers no mail.
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
