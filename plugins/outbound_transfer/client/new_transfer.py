"""The request for a draft, validated (service-api.md, R22 to R25), and the forms in which users give recipients."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from outbound_transfer.client.addresses import duplicate_addresses
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.wording import hint_at_pair, is_valid_unicode, pluralize

MAX_RECIPIENTS: Final = 250
MAX_MESSAGE_LENGTH: Final = 2_000

#: The fields of a recipient (service-api.md, R22); a phone is never shown.
RECIPIENT_FIELDS: Final = frozenset({"email", "name", "phone"})

#: Values of ``security`` (service-api.md, R10).
SECURITY_OPTIONS: Final = ("none", "email", "email_code", "question", "sms", "login")

#: An address, or a mapping with ``email`` and optionally ``name`` and ``phone``.
GivenRecipient: TypeAlias = str | Mapping[str, Any]


class NewRecipient(msgspec.Struct, frozen=True, omit_defaults=True):
    """A requested recipient. ``phone`` is secret: no representation of this object shows it."""

    email: str
    name: str | None = None
    phone: str | None = None

    def __repr__(self) -> str:
        return f"NewRecipient({self.email!r})"


class NewTransfer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/transfers (service-api.md, R22), as validated by :func:`build_new_transfer`."""

    subject: str
    recipients: tuple[NewRecipient, ...]
    message: str | None = None
    security: str | None = None
    security_question: str | None = None
    security_answer: str | None = None

    def __repr__(self) -> str:
        return f"NewTransfer({self.subject!r}, {pluralize(len(self.recipients), 'recipient')})"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no log, error or rendered field may show."""
        return tuple(filter(None, (self.security_answer, *(recipient.phone for recipient in self.recipients))))


def build_new_transfer(
    *,
    subject: str,
    recipients: GivenRecipient | Iterable[GivenRecipient],
    message: str | None = None,
    security: str | None = None,
    security_question: str | None = None,
    security_answer: str | None = None,
) -> NewTransfer:
    """Validate and build the request for a draft.

    :param subject: not empty.
    :param recipients: one or several addresses, or mappings with ``email`` and optionally ``name`` and ``phone``; or
        such a list or mapping as text, in JSON or Python.
    :param message: at most 2,000 characters.
    :param security: one of :data:`SECURITY_OPTIONS`; the account's default if omitted or None. An empty text is
        refused: the account's default may be weaker than what a template without a value was to give.
    :param security_question: for security ``question`` only.
    :param security_answer: for security ``question`` only; secret.
    :raises InvalidDelivery: one line for each broken rule; secrets are not quoted.
    """
    given, parsed, problems = as_recipient_list(recipients), list[NewRecipient](), list[str]()
    if not 1 <= len(given) <= MAX_RECIPIENTS:
        hint = ": split the delivery" if given else ""
        problems.append(f"recipients must be 1 to {MAX_RECIPIENTS}, not {len(given)}{hint}")
    for position, each in enumerate(given, 1):
        try:
            parsed.append(_parse_recipient(each))
        except ValueError as error:
            problems.append(f"recipient {position}: {error}")
    new = NewTransfer(
        subject or "", tuple(parsed), message or None, security, security_question or None, security_answer or None
    )
    # The other checks need texts.
    if problems := [*problems, *(list(_type_problems(new)) or _problems(new))]:
        raise InvalidDelivery("The delivery cannot be made, nothing was created:\n- " + "\n- ".join(problems))
    return new


def as_recipient_list(given: GivenRecipient | Iterable[GivenRecipient]) -> list[GivenRecipient]:
    """Return recipients in whatever form they are given as a list, each as it is."""
    given = parse_text(given)
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else [given]


def parse_text(given: Any) -> Any:
    """Parse a text of JSON, or of a Python list or mapping; return anything else unchanged.

    Templates of Airflow Variables render such texts: ``{{ var.value.board }}`` renders JSON, ``{{ var.json.board }}``
    renders Python.
    """
    if _is_structured_text(given):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(given.strip())
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                continue
            # The order of a set differs between processes, so each try of a task would make another delivery.
            return value if isinstance(value, list | tuple | dict) else given
    return given


def is_safe_to_show(text: str) -> bool:
    """Return whether a text given as an address looks like one, and neither like a phone number nor like JSON."""
    return "@" in text and not set(text) & set('"()[]{}')


def show_address(text: str) -> str:
    """Return a text given as an address, or ``***`` if it may be something else."""
    return text if is_safe_to_show(text) else "***"


def _is_structured_text(given: Any) -> bool:
    return isinstance(given, str) and given.lstrip().startswith(("[", "{", "("))


def _parse_recipient(given: GivenRecipient) -> NewRecipient:
    """:raises ValueError: with the reason, which quotes no value."""
    given = parse_text(given)
    if isinstance(given, str):
        given = {"email": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"must be an address or a mapping, not {type(given).__name__}{hint_at_pair(given)}")
    if unknown := sorted(str(field) for field in given if field not in RECIPIENT_FIELDS):
        raise ValueError(f"has the field {unknown[0]!r:.100}, but may only have email, name and phone")
    recipient = msgspec.convert(given, NewRecipient)  # whose errors name fields and types, never values
    if not is_valid_unicode(f"{recipient.name}{recipient.phone}"):
        raise ValueError("not valid Unicode")
    return recipient


def _type_problems(new: NewTransfer) -> Iterator[str]:
    for field in ("subject", "message", "security", "security_question", "security_answer"):
        text = getattr(new, field)
        if not isinstance(text, str | None):
            yield f"{field} must be text, not {type(text).__name__}"
        elif not is_valid_unicode(text or ""):
            yield f"{field} is not valid Unicode"


def _problems(new: NewTransfer) -> list[str]:
    length, addresses = len(new.message or ""), [recipient.email for recipient in new.recipients]
    malformed = list(filter(None, map(_address_problem, addresses)))
    repeated = [] if malformed else duplicate_addresses(addresses)
    checks = [
        (not new.subject.strip(), "subject must not be empty; a template without a value is"),
        (length > MAX_MESSAGE_LENGTH, f"message has {length:,} characters; {MAX_MESSAGE_LENGTH:,} are allowed"),
        *((True, problem) for problem in malformed),
        *((True, f"recipient {each!r} occurs more than once, and would get one email each time") for each in repeated),
        *_security_checks(new),
    ]
    return [text for is_wrong, text in checks if is_wrong]


def _address_problem(address: str) -> str:
    from email_validator import EmailNotValidError, validate_email

    try:
        # The service checks whether an address accepts mail; here only its form counts (service-api.md, R23).
        validate_email(address, check_deliverability=False, allow_smtputf8=True, test_environment=True)
    except EmailNotValidError as error:
        if _is_structured_text(address):
            return "a recipient starts like JSON, but is neither JSON nor a list or mapping in Python"
        hint = " Give several addresses as a list." if address.count("@") > 1 else ""
        return f"recipient {show_address(address)!r} is not an address: {error}{hint}"
    return ""


def _security_checks(new: NewTransfer) -> Iterator[tuple[object, str]]:
    """Yield whether each rule is broken, and what to say then.

    Without security the account's default applies, which is unknown here; the service then validates.
    """
    security, options = new.security, ", ".join(SECURITY_OPTIONS)
    yield security == "", "security must not be empty: leave it out, or give None, for the account's default"
    yield security not in (None, "", *SECURITY_OPTIONS), f"security must be one of {options}, not {security!r:.100}"
    for field in ("security_question", "security_answer"):
        is_given = getattr(new, field) is not None
        yield security == "question" and not is_given, f"security 'question' needs {field}"
        yield is_given and security not in (None, "", "question"), f"{field} is not used with security {security!r}"
    for recipient in new.recipients if security == "sms" else ():
        address, digits = show_address(recipient.email), re.sub(r"[\W_]", "", recipient.phone or "")
        yield not recipient.phone, f"security 'sms' needs the phone of {address}"
        yield (
            recipient.phone and not re.fullmatch("[0-9]+", digits),
            f"the phone of {address} must be digits, optionally with spaces and punctuation",
        )
