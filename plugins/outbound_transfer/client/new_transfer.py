"""Validated input for the service: the request for a draft (service-api.md, R22 to R25), and file names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.wording import is_valid_unicode

MAX_RECIPIENTS: Final = 250
MAX_MESSAGE_LENGTH: Final = 2_000
MAX_NAME_BYTES: Final = 255  # the limit of common file systems, so that a recipient can save the file

#: The fields of a recipient (service-api.md, R22); phone numbers are never shown.
RECIPIENT_FIELDS: Final = frozenset({"email", "name", "phone"})

#: Values of ``security`` (service-api.md, R10).
SECURITY_OPTIONS: Final = ("none", "email", "email_code", "question", "sms", "login")

#: An address, or a mapping with ``email`` and optionally ``name`` and ``phone``.
GivenRecipient: TypeAlias = str | Mapping[str, Any]

_JOINERS: Final = {ord("\u200c"): None, ord("\u200d"): None}  # join letters in some scripts, and parts of emoji


class NewRecipient(msgspec.Struct, frozen=True, omit_defaults=True):
    """A requested recipient. ``phone`` is secret: no representation of this object shows it."""

    email: str
    name: str | None = None
    phone: str | None = None

    def __repr__(self) -> str:
        return f"NewRecipient({self.email!r})"


class NewTransfer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/transfers (service-api.md, R22), as validated by ``build_new_transfer``."""

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
        """Strings that no log, error or rendered field may show."""
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

    :param security: one of :data:`SECURITY_OPTIONS`; the account's default if None. An empty string is rejected:
        the account's default may be weaker than what a template without a value was meant to set.
    :param security_question: only for security ``question``, like ``security_answer``, which is secret.
    :raises InvalidDelivery: one line for each broken rule; secrets are not quoted.
    """
    given, parsed, problems = as_recipient_list(recipients), list[NewRecipient](), list[str]()
    if not 1 <= len(given) <= MAX_RECIPIENTS:
        problems.append(f"recipients must be 1 to {MAX_RECIPIENTS}, not {len(given)}: split a larger delivery")
    for position, each in enumerate(given, 1):
        try:
            parsed.append(_parse_recipient(each))
        except (ValueError, msgspec.ValidationError) as error:  # which is a ValueError only from 0.21 on
            problems.append(f"recipient {position}: {error}")
    new = NewTransfer(
        subject or "", tuple(parsed), message or None, security, security_question or None, security_answer or None
    )
    problems += list(_type_problems(new)) or [*_problems(new), *_security_problems(new)]  # which need strings
    if problems:
        lines = dict.fromkeys(problems)
        raise InvalidDelivery("The delivery is invalid, so nothing was created:\n- " + "\n- ".join(lines))
    return new


def as_recipient_list(given: GivenRecipient | Iterable[GivenRecipient]) -> list[GivenRecipient]:
    """Return one or several recipients as a list, each unchanged."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else [given]


def normalize_address(address: str) -> str:
    """Return the same string for all spellings of a mailbox's address, with the domain as in DNS (IDNA 2008).

    Different people stay different: ``strauß@…`` is not ``strauss@…``, as :meth:`str.casefold` would make it.
    """
    local, at, domain = " ".join(unicodedata.normalize("NFC", address).lower().split()).rpartition("@")
    if not domain.isascii():
        import idna  # only here, as its tables take time to load

        with suppress(UnicodeError):  # an invalid domain is compared unchanged
            domain = idna.encode(domain, uts46=True).decode()
    return f"{local}{at}{domain}"


def show_address(text: str) -> str:
    """Return a string given as an address; ``***`` if it may be something else, such as a phone number or JSON."""
    return text if "@" in text and not set(text) & set('"()[]{}') else "***"


def _parse_recipient(given: GivenRecipient) -> NewRecipient:
    """:raises ValueError: with the reason, which quotes no value."""
    if isinstance(given, str):
        given = {"email": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"must be an address or a mapping, not {type(given).__name__}")
    if unknown := sorted(str(field) for field in given if field not in RECIPIENT_FIELDS):
        raise ValueError(f"has the field {unknown[0]!r:.100}, but may only have email, name and phone")
    # A database's CHAR column or a line of a file may end in white space, which no address or name contains.
    stripped = {field: text.strip() for field, text in given.items() if field != "phone" and isinstance(text, str)}
    recipient = msgspec.convert({**given, **stripped}, NewRecipient)  # whose errors never quote values
    if not is_valid_unicode(f"{recipient.name}{recipient.phone}"):
        raise ValueError("not valid Unicode")
    return recipient


def _type_problems(new: NewTransfer) -> Iterator[str]:
    for field in ("subject", "message", "security", "security_question", "security_answer"):
        text = getattr(new, field)
        if not isinstance(text, str | None):
            yield f"{field} must be a string, not {type(text).__name__}: quote it, as in \"'12.50'\""
        elif not is_valid_unicode(text or ""):
            yield f"{field} is not valid Unicode"


def _problems(new: NewTransfer) -> Iterator[str]:
    if not new.subject.strip():
        yield "subject must not be empty; check whether its template has a value"
    if (length := len(new.message or "")) > MAX_MESSAGE_LENGTH:
        yield f"message has {length:,} characters; {MAX_MESSAGE_LENGTH:,} are allowed"
    addresses = [recipient.email for recipient in new.recipients]
    malformed = list(filter(None, map(_address_problem, addresses)))
    yield from malformed
    for each, count in () if malformed else sorted(Counter(map(normalize_address, addresses)).items()):
        if count > 1:  # the service would email each of them (service-api.md, R23)
            yield f"recipient {each!r} occurs more than once, and would get one email each time"


def _address_problem(address: str) -> str:
    from email_validator import EmailNotValidError, validate_email

    try:
        # The service checks whether an address accepts mail; here only its form counts (service-api.md, R23).
        validate_email(address, check_deliverability=False, allow_smtputf8=True, test_environment=True)
    except EmailNotValidError as error:
        if address.lstrip().startswith(("[", "{", "(")):
            return "a recipient starts like JSON, but is neither JSON nor a Python list or mapping"
        hint = " Give several addresses as a list." if address.count("@") > 1 else ""
        return f"recipient {show_address(address)!r} is not an address: {error}{hint}"
    return ""


def _security_problems(new: NewTransfer) -> Iterator[str]:
    # Without security the account's default applies, which is unknown here; the service then validates.
    security, options = new.security, ", ".join(SECURITY_OPTIONS)
    if security not in (None, *SECURITY_OPTIONS):
        yield f"security must be one of {options}, or None for the account's default, not {security!r:.100}"
    for field in ("security_question", "security_answer"):
        is_given = getattr(new, field) is not None
        if security == "question" and not is_given:
            yield f"security 'question' needs {field}"
        if security not in (None, "question") and is_given:
            yield f"{field} is not used with security {security!r:.100}"
    for recipient in new.recipients if security == "sms" else ():
        if not re.fullmatch("[0-9]+", re.sub(r"[\W_]", "", recipient.phone or "")):
            yield f"security 'sms' needs a phone number for {show_address(recipient.email)}: digits and punctuation"


def attachment(name: str) -> str:
    """Return an upload's Content-Disposition: ``filename*`` is the name, ``filename`` the closest in ASCII (R30)."""
    check_name(name)
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() or "file"
    # Parsers disagree on quotes, backslashes and percent signs; normalization may produce a slash.
    fallback = re.sub(r'["\\%/]', "_", ascii_name)
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{quote(name, safe='')}"


def check_name(name: str) -> None:
    """:raises InvalidDelivery: the service would not store a file name unchanged, or it could look like another."""
    categories = set(map(unicodedata.category, name.translate(_JOINERS)))
    reasons = {
        "is empty or consists of dots and spaces": not name.replace(".", "").strip(),
        "contains a path separator, and the service strips directory parts": {"/", "\\"} & set(name),
        "contains a control character": "Cc" in categories,
        "is not valid Unicode": "Cs" in categories,
        "contains an invisible character, which makes a name look like another": {"Cf", "Zl", "Zp"} & categories,
        f"is over {MAX_NAME_BYTES} bytes in UTF-8": len(name.encode(errors="replace")) > MAX_NAME_BYTES,
    }
    if reason := next((reason for reason, is_found in reasons.items() if is_found), ""):
        raise InvalidDelivery(f'the file name {name!r} {reason}; set another name with {{"path": …, "name": …}}')
