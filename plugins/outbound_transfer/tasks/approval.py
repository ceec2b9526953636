"""What a person is shown who approves a send, and what a response is worth: pure."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.models import NewTransfer, Transfer
from outbound_transfer.protocol.wording import clean, pluralize
from outbound_transfer.tasks.receipt import ACCOUNT_DEFAULT, ReceiptFacts

_APPROVE: Final = "Approve"
REJECT: Final = "Reject"

#: What Markdown may take for more than text.
_MARKUP: Final = re.compile(r"([!-/:-@\[-`{-~])")

_CODE_LENGTH: Final = 12

#: Longer than any text that the service takes, but a subject.
_MAX_TEXT: Final = 2_000


class Approval(msgspec.Struct, frozen=True):
    """Who has approved what, and when.

    :ivar code: of the content; see :meth:`DraftContent.code`.
    :ivar by: the user's name in Airflow.
    :ivar at: ISO 8601.
    """

    code: str
    by: str
    at: str


class NotApproved(msgspec.Struct, frozen=True):
    """Why nobody has approved it.

    :ivar is_rejected: whether somebody has rejected it.
    :ivar is_late: whether nobody has responded in time.
    """

    reason: str
    is_rejected: bool = False
    is_late: bool = False


class DraftContent(msgspec.Struct, frozen=True):
    """What the send of a draft delivers, whatever the draft's id.

    :ivar files: SHA-256 in hexadecimal of each file, by name, as far as it is known.
    :ivar security: the option that protects it; None for the account's.
    :ivar secrets: what the service does not show: answer and phones, as far as they are known.
    """

    draft: Transfer
    files: Mapping[str, str]
    security: str | None = None
    secrets: tuple[str | None, ...] = ()

    __repr__ = object.__repr__  # it would show them

    @classmethod
    def of(cls, new: NewTransfer, draft: Transfer, files: Mapping[str, str]) -> DraftContent:
        """Return the content of a draft that was made from ``new``."""
        phones = [each.phone for each in sorted(new.recipients, key=lambda recipient: recipient.email)]
        return cls(draft, files, new.security, (new.security_question, new.security_answer, *phones))

    @classmethod
    def of_facts(cls, facts: Iterable[ReceiptFacts], draft: Transfer) -> DraftContent:
        """Return the content of a draft that other tasks have made, as far as they say it."""
        known = [each for each in facts if each.transfer_id == draft.id]
        digests = {file_id: digest for each in known for file_id, digest in each.sha256.items()}
        files = {file.name: digests[file.id] for file in draft.files or () if file.id in digests}
        security = next((each.security for each in known if each.security not in (None, ACCOUNT_DEFAULT)), None)
        return cls(draft, files, security)

    def code(self, api_key: str) -> str:
        """Return what stands for this content, and for no other: hexadecimal digits.

        :param api_key: of the connection: without it, nobody can guess people or secrets from the code.
        """
        draft = self.draft
        content = [
            *(draft.subject, draft.message, self.security, self.secrets),
            sorted([each.email, each.name or ""] for each in draft.recipients),
            sorted([file.name, file.size, self.files.get(file.name, "")] for file in draft.files or ()),
        ]
        return hmac.new(api_key.encode(), json.dumps(content).encode(), hashlib.sha256).hexdigest()[:_CODE_LENGTH]


class ApprovalRequest(msgspec.Struct, frozen=True):
    """What a person is asked.

    :ivar body: Markdown.
    :ivar code: of the content that is shown.
    """

    subject: str
    body: str
    code: str

    @classmethod
    def about(cls, content: DraftContent, code: str, url: str, *, shows_recipients: bool) -> ApprovalRequest:
        """Return what a person is asked about a draft. Texts from outside are shown as they are, and are no Markdown.

        :param url: of the draft in the service's web application; "" if there is none.
        """
        draft, people = content.draft, pluralize(len(content.draft.recipients), "recipient")
        parts = [
            f"Nothing is sent yet. **{approve_option(code)}** sends exactly this, once.",
            f"**Subject:** {_plain(draft.subject)}",
            "\n- ".join([f"**To {people}**", *(_people(draft) if shows_recipients else ())]),
            f"**Security:** {_plain(content.security) if content.security else 'the default of the account'}",
            "**Message:**" if draft.message else "",
            "\n>\n".join(f"> {_plain(line)}" for line in (draft.message or "").splitlines()),
            "\n".join(["| File | Bytes | SHA-256 |", "| --- | --- | --- |", *_files(content)]),
            f"[The draft in the web application]({url})" if url else "",
        ]
        return cls(f"Send '{clean(draft.subject)}' to {people}?", "\n\n".join(filter(None, parts)), code)

    @property
    def options(self) -> tuple[str, str]:
        """What may be chosen."""
        return approve_option(self.code), REJECT


def approve_option(code: str) -> str:
    """Return the option that approves the content with this code, and no other: Airflow may show an older request."""
    return f"{_APPROVE} {code}"


def parse_response(event: Any, code: str) -> Approval | NotApproved:
    """Return what a person has chosen.

    :param event: what Airflow resumes the task with.
    :param code: of what this task has asked about; "" if it is not known.
    """
    error, options = event.get("error"), event.get("chosen_options") or []
    user = event.get("responded_by_user") or {}
    by, at = clean(user.get("name") or user.get("id") or "an unknown user"), str(event.get("responded_at") or "")
    if error:
        is_late = event.get("error_type") == "timeout"
        return NotApproved("nobody has responded in time" if is_late else clean(error), is_late=is_late)
    if options == [REJECT]:
        return NotApproved(f"rejected by {by}", is_rejected=True)
    approved = str(options[0]).removeprefix(f"{_APPROVE} ") if len(options) == 1 else ""
    if not approved or (code and approved != code):
        return NotApproved(
            f"{by} has approved what an earlier try has shown, and not what is to be sent now. Airflow up to 3.3 goes "
            "on showing the first request of a task instance; trigger a new DAG run"
        )
    return Approval(approved, by, at)


def _people(draft: Transfer) -> Iterable[str]:
    return (_plain(f"{each.name} <{each.email}>" if each.name else each.email) for each in draft.recipients)


def _files(content: DraftContent) -> Iterable[str]:
    for file in content.draft.files or ():
        yield f"| {_plain(file.name)} | {file.size:,} | {content.files.get(file.name) or 'not known'} |"


def _plain(text: str) -> str:
    """Return the Markdown that shows a text of one line as it is."""
    return _MARKUP.sub(r"\\\1", clean(text, _MAX_TEXT))
