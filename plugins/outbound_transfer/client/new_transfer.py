"""The request for a draft, validated (service-api.md, R22 to R25), and the forms in which users give recipients."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.wording import hint_at_pair, is_valid_unicode

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
        return f"NewTransfer({self.subject!r}, recipients={len(self.recipients)})"

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
    :param recipients: one or several addresses, or mappings with ``email`` and optionally ``name`` and ``phone``.
    :param message: at most 2,000 characters.
    :param security: one of :data:`SECURITY_OPTIONS`; the account's default if omitted or None. An empty text is
        refused: the account's default may be weaker than what a template without a value was to give.
    :param security_question: for security ``question`` only.
    :param security_answer: for security ``question`` only; secret.
    :raises InvalidDelivery: one line for each broken rule; secrets are not quoted.
    """
    given, parsed, problems = as_recipient_list(recipients), list[NewRecipient](), list[str]()
    if not 1 <= len(given) <= MAX_RECIPIENTS:
        problems.append(f"recipients must be 1 to {MAX_RECIPIENTS}, not {len(given)}: split a larger delivery")
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
    """Return one or several recipients as a list, each as it is."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else [given]


def normalize_address(address: str) -> str:
    """Return the address without the differences that mean the same mailbox, with the domain as DNS has it.

    Two people never become one: ``strauß@…`` is not ``strauss@…``, as :meth:`str.casefold` would have it, and so for
    domains (IDNA 2008).
    """
    local, at, domain = " ".join(unicodedata.normalize("NFC", address).lower().split()).rpartition("@")
    if not domain.isascii():
        import idna  # only here, as its tables take time to load

        with suppress(UnicodeError):  # an invalid domain is compared as it is
            domain = idna.encode(domain, uts46=True).decode()
    return f"{local}{at}{domain}"


def duplicate_addresses(addresses: Iterable[str]) -> list[str]:
    """Return the addresses that occur more than once; the service would email each of them (service-api.md, R23)."""
    counts = Counter(map(normalize_address, addresses))
    return sorted(address for address, count in counts.items() if count > 1)


def show_address(text: str) -> str:
    """Return a text given as an address; ``***`` if it may be something else, such as a phone number or JSON."""
    return text if "@" in text and not set(text) & set('"()[]{}') else "***"


def _parse_recipient(given: GivenRecipient) -> NewRecipient:
    """:raises ValueError: with the reason, which quotes no value."""
    if isinstance(given, str):
        given = {"email": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"must be an address or a mapping, not {type(given).__name__}{hint_at_pair(given)}")
    if unknown := sorted(str(field) for field in given if field not in RECIPIENT_FIELDS):
        raise ValueError(f"has the field {unknown[0]!r:.100}, but may only have email, name and phone")
    # A CHAR column of a database and a line of a file end in white space, which no address and no name has.
    given = {
        field: value.strip() if field != "phone" and isinstance(value, str) else value for field, value in given.items()
    }
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
    malformed = dict.fromkeys(filter(None, map(_address_problem, addresses)), True)
    repeated = [] if malformed else duplicate_addresses(addresses)
    checks = {
        "subject must not be empty; a template without a value is": not new.subject.strip(),
        f"message has {length:,} characters; {MAX_MESSAGE_LENGTH:,} are allowed": length > MAX_MESSAGE_LENGTH,
        **malformed,
        **{f"recipient {each!r} occurs more than once, and would get one email each time": True for each in repeated},
        **_security_checks(new),
    }
    return [problem for problem, is_found in checks.items() if is_found]


def _address_problem(address: str) -> str:
    from email_validator import EmailNotValidError, validate_email

    try:
        # The service checks whether an address accepts mail; here only its form counts (service-api.md, R23).
        validate_email(address, check_deliverability=False, allow_smtputf8=True, test_environment=True)
    except EmailNotValidError as error:
        if address.lstrip().startswith(("[", "{", "(")):
            return "a recipient starts like JSON, but is neither JSON nor a list or mapping in Python"
        hint = " Give several addresses as a list." if address.count("@") > 1 else ""
        return f"recipient {show_address(address)!r} is not an address: {error}{hint}"
    return ""


def _security_checks(new: NewTransfer) -> dict[str, bool]:
    """Return whether each rule is broken, by what to say then.

    Without security the account's default applies, which is unknown here; the service then validates.
    """
    security, options, checks = new.security, ", ".join(SECURITY_OPTIONS), dict[str, bool]()
    checks[f"security must be one of {options}, or None for the account's default, not {security!r:.100}"] = (
        security not in (None, *SECURITY_OPTIONS)
    )
    for field in ("security_question", "security_answer"):
        is_given = getattr(new, field) is not None
        checks[f"security 'question' needs {field}"] = security == "question" and not is_given
        checks[f"{field} is not used with security {security!r:.100}"] = is_given and security not in (None, "question")
    for recipient in new.recipients:
        digits = re.sub(r"[\W_]", "", recipient.phone or "")
        problem = f"security 'sms' needs the phone of {show_address(recipient.email)}, in digits and punctuation"
        checks[problem] = security == "sms" and not re.fullmatch("[0-9]+", digits)
    return checks
