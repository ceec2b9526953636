"""What a person is shown who approves a send, and what a response is worth: pure."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from outbound_transfer.protocol.models import NewTransfer, Transfer
from outbound_transfer.protocol.wording import clean, pluralize
from outbound_transfer.tasks.receipt import ACCOUNT_DEFAULT, ReceiptFacts

_APPROVE: Final = "Approve"
REJECT: Final = "Reject"

#: Characters that nobody sees, and that :func:`.clean` does not replace: soft hyphens, tags, fillers, notation.
_UNSEEN: Final = re.compile(
    "[\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufff9-\ufffb\U000110bd\U000110cd"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_CODE_LENGTH: Final = 12

#: What is shown for what is no option of the service.
_SECURITY: Final = {ACCOUNT_DEFAULT: "the default of the account", None: "not known"}


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
    :ivar superseded: ids of what was sent before, in whose place this is sent.
    :ivar security: the option that protects it, or :data:`ACCOUNT_DEFAULT`; None if it is not known.
    :ivar question: the security question; "" if it is not known, or there is none.
    :ivar secrets: stands for what the service does not show; see :func:`secrets_code`.
    """

    draft: Transfer
    files: Mapping[str, str]
    superseded: Sequence[str] = ()
    security: str | None = None
    question: str = ""
    secrets: str = ""

    @classmethod
    def of(
        cls, new: NewTransfer, api_key: str, draft: Transfer, files: Mapping[str, str], superseded: Sequence[str] = ()
    ) -> DraftContent:
        """Return the content of a draft that was made from ``new``."""
        question, secrets = new.security_question or "", secrets_code(new, api_key)
        return cls(draft, files, superseded, new.security or ACCOUNT_DEFAULT, question, secrets)

    @classmethod
    def of_facts(cls, facts: Iterable[ReceiptFacts], draft: Transfer, superseded: Sequence[str] = ()) -> DraftContent:
        """Return the content of a draft that other tasks have made, as far as they say it."""
        known = [each for each in facts if each.transfer_id == draft.id]
        digests = {file_id: digest for each in known for file_id, digest in each.sha256.items()}
        files = {file.name: digests[file.id] for file in draft.files or () if file.id in digests}
        security = next((each.security for each in known if each.security), None)
        secrets = next((each.secrets for each in known if each.secrets), "")
        return cls(draft, files, superseded, security, secrets=secrets or draft.id)  # without them, only for this draft

    def code(self, api_key: str) -> str:
        """Return what stands for this content, and for no other: hexadecimal digits.

        :param api_key: of the connection: without it, nobody can guess people or secrets from the code.
        """
        draft = self.draft
        content = [
            *(draft.subject, draft.message, self.security, self.secrets, sorted(self.superseded)),
            sorted([each.email, each.name or ""] for each in draft.recipients),
            # An id changes with the file.
            sorted([file.name, file.size, self.files.get(file.name) or file.id] for file in draft.files or ()),
        ]
        return _keyed_digest(content, api_key)[:_CODE_LENGTH]


def secrets_code(new: NewTransfer, api_key: str) -> str:
    """Return what stands for the question, the answer and the phones of a draft: a digest that needs the API key."""
    phones = sorted([each.email, each.phone] for each in new.recipients)
    return _keyed_digest([new.security_question, new.security_answer, phones], api_key)


def _keyed_digest(value: Any, api_key: str) -> str:
    return hmac.new(api_key.encode(), json.dumps(value).encode(), hashlib.sha256).hexdigest()


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
        """Return what a person is asked about a draft. Texts from outside are code, so that they are shown as they are.

        :param url: of the draft in the service's web application; "" if there is none.
        """
        draft, question = content.draft, content.question or ("not known" if content.security == "question" else "")
        people = pluralize(len(draft.recipients), "recipient")
        parts = [
            f"Nothing is sent yet. **{approve_option(code)}** sends exactly this, once.",
            f"It is sent once more, after {', '.join(map(_code, content.superseded))}." if content.superseded else "",
            f"**Subject:** {_code(draft.subject)}",
            "\n- ".join([f"**To {people}**", *(map(_code, _people(draft)) if shows_recipients else ())]),
            f"**Security:** {_SECURITY.get(content.security) or _code(str(content.security))}",
            f"**Question:** {_code(question)}" if question else "",
            "**Message:**" if draft.message else "",
            # Airflow shows a block of code as one line.
            "\n>\n".join(f"> {_code(line)}" for line in (draft.message or "").splitlines() if line.strip()),
            "\n".join(["| File | Bytes | SHA-256 |", "| --- | --- | --- |", *_files(content)]),
            f"[The draft in the web application]({url})" if url else "",
        ]
        title = f"Send '{_visible(clean(draft.subject))}' to {people}?"
        return cls(title, "\n\n".join(filter(None, parts)), code)

    @property
    def options(self) -> tuple[str, str]:
        """What may be chosen."""
        return approve_option(self.code), REJECT


def approve_option(code: str) -> str:
    """Return the option that approves the content with this code, and no other: Airflow may show an older request."""
    return f"{_APPROVE} {code}"


def parse_response(event: Any, code: str, assigned_users: Iterable[Mapping[str, str]] = ()) -> Approval | NotApproved:
    """Return what a person has chosen.

    :param event: what Airflow resumes the task with.
    :param code: of what this task has asked about; "" if it is not known.
    :param assigned_users: who may approve; empty for everybody. Airflow may go by those of an earlier request.
    """
    event = event if isinstance(event, Mapping) else {"error": "Airflow has passed no response"}
    error, options, user = event.get("error"), event.get("chosen_options") or [], event.get("responded_by_user")
    names = user if isinstance(user, Mapping) else {}
    by, at = clean(names.get("name") or names.get("id") or "an unknown user"), event.get("responded_at")
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
    assigned = {user["id"] for user in assigned_users}
    if assigned and names.get("id") not in assigned:
        return NotApproved(f"{by} has approved it, and is not one of approval_assigned_users; trigger a new DAG run")
    when = at.isoformat() if isinstance(at, datetime) else str(at or "")
    return Approval(approved, by, when)


def _people(draft: Transfer) -> Iterable[str]:
    return (f"{each.name} <{each.email}>" if each.name else each.email for each in draft.recipients)


def _files(content: DraftContent) -> Iterable[str]:
    for file in content.draft.files or ():
        name = _code(file.name).replace("|", "\\|")  # in a table, also within code
        yield f"| {name} | {file.size:,} | {content.files.get(file.name) or 'not known'} |"


def _code(text: str) -> str:
    """Return the Markdown that shows a text of one line as it is."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {_visible(clean(text, len(text)))} {ticks}"


def _visible(text: str) -> str:
    return _UNSEEN.sub(chr(0xFFFD), text)
