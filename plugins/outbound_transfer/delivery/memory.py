"""What a delivery remembers from try to try: eight fields, never changed in place, none of them a secret in clear."""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Any, Final

import msgspec

from outbound_transfer.delivery.decision import Action, Input, Phase
from outbound_transfer.files.attached import AttachedFile
from outbound_transfer.protocol.digests import digest_with, matches
from outbound_transfer.protocol.models import NewRecipient, NewTransfer

#: Instead of the ``max_tries`` of the last send, if a later try may have sent: nothing is remembered of it.
UNKNOWN: Final = -1


class Likeness(Enum):
    """How alike a sent transfer must be to this delivery to be taken for it."""

    EXACT = "the same subject and recipients, and exactly the same files"
    SAME_PEOPLE = "the same subject and recipients, and at least one file of the same name"
    SHARED_PEOPLE = "the same subject, and recipients and files in common"

    def or_wider(self, other: Likeness | None) -> Likeness:
        """Return the one of the two that takes more transfers for the delivery."""
        order = list(Likeness)
        return max(self, other or self, key=order.index)


#: What is remembered of a draft that cannot be sent any more.
_NOTHING: Final[dict[str, Any]] = {"phase": Phase.EMPTY, "draft_id": "", "identity": "", "files": {}}


class Writer(msgspec.Struct, frozen=True):
    """Who wrote the memory.

    :ivar task: its identity, where others may write it too; else "".
    :ivar max_tries: of the task at the last send, which a clear changes, or :data:`UNKNOWN`.
    """

    try_number: int
    max_tries: int
    task: str = ""


class Scope(msgspec.Struct, frozen=True):
    """Where a delivery is made, and under which name.

    :ivar account: the site address that the connection leads to.
    :ivar key_check: digest of the connection's API key: detects that it was replaced.
    :ivar delivery_key: "" if the task instance identifies the delivery.
    """

    account: str
    key_check: str
    delivery_key: str = ""


class InputDigests(msgspec.Struct, frozen=True):
    """What a task was asked to deliver, as one salted digest for each argument.

    :ivar arguments: by name; ``files`` are the paths and patterns.
    :ivar secrets: of the security answer and the phones, keyed with the connection's API key; "" if there are none.
    """

    arguments: dict[str, str]
    secrets: str = ""

    @classmethod
    def of(cls, new: NewTransfer, files: Any, api_key: str) -> InputDigests:
        arguments = {name: digest(value) for name, value in arguments_of(new, files).items()}
        hidden = _secrets_of(new)
        return cls(arguments, digest_with(hidden, new_salt(), api_key) if any(hidden) else "")

    def differences(self, new: NewTransfer, files: Any) -> list[str]:
        """Return the names of the arguments that differ, but those of secrets."""
        now = arguments_of(new, files)
        return [name for name, value in now.items() if not matches(self.arguments.get(name, ""), value)]

    def compare(self, new: NewTransfer, api_key: str, *, is_same_key: bool) -> Input:
        """Compare all but the files, which are compared by their content."""
        if self.differences(new, None) not in ([], ["files"]):
            return Input.OTHER
        hidden = _secrets_of(new)
        if not (self.secrets or any(hidden)):
            return Input.SAME
        if not is_same_key:
            return Input.UNKNOWN
        return Input.SAME if any(hidden) and matches(self.secrets, hidden, api_key) else Input.OTHER


class Memory(msgspec.Struct, frozen=True):
    """What is remembered of one delivery.

    :ivar draft_id: of the draft, or the transfer that it became; "" if there is none.
    :ivar identity: digest of its subject and recipients as the service shows them; an id alone does not identify it.
    :ivar input: what it was made from; None before there is a draft.
    :ivar scope: where it was made; where the first try began if nothing was.
    :ivar files: what the draft holds, as its last writer left it.
    :ivar question: how alike a sent transfer must be to stop the delivery; None if nobody else can have sent it. Every
        later try inherits it.
    """

    writer: Writer
    scope: Scope
    phase: Phase = Phase.EMPTY
    draft_id: str = ""
    identity: str = ""
    input: InputDigests | None = None
    files: dict[str, AttachedFile] = {}
    question: Likeness | None = None

    def continued(self, writer: Writer, question: Likeness | None, *, is_complete: bool) -> Memory:
        """Return the memory as a try begins with it.

        :param is_complete: False if the memory of a later try is lost: that try may have taken the draft over, and may
            have sent it.
        """
        phase = Phase.DRAFT if self.phase is Phase.HANDED_ON and not is_complete else self.phase
        wider = question.or_wider(self.question) if question else self.question
        max_tries = self.writer.max_tries if is_complete else UNKNOWN
        writer = msgspec.structs.replace(writer, max_tries=max_tries, task=self.writer.task)
        return msgspec.structs.replace(self, writer=writer, phase=phase, question=wider)

    def after(self, action: Action, writer: Writer, **known: Any) -> Memory:
        """Return the memory once ``action`` is decided (before a draft is written to) or done (at the service).

        :param known: further fields that the action has shown.
        """
        changes: dict[str, Any] = {}
        match action:
            case Action.CREATE:
                changes = {"phase": Phase.DRAFT, "files": {}}
            case Action.RESUME:
                changes = {"phase": Phase.DRAFT}
            case Action.SEND:
                max_tries = UNKNOWN if self.has_gap else writer.max_tries
                changes = {"writer": msgspec.structs.replace(writer, max_tries=max_tries), "phase": Phase.SENDING}
            case Action.DISCARD | Action.FORGET:
                changes = _NOTHING
        return msgspec.structs.replace(self, **{**changes, **known})

    @property
    def has_gap(self) -> bool:
        """Whether a try has begun of which nothing is remembered."""
        return self.writer.max_tries == UNKNOWN


def may_be_cleared_since(memory: Memory, writer: Writer) -> bool:
    """Return whether the task was cleared since it has sent, or whether that is not known.

    Taking over another task's delivery counts as a clear: it is a new request.
    """
    then = memory.writer
    return (then.task, then.max_tries) != (writer.task, writer.max_tries)


def arguments_of(new: NewTransfer, files: Any) -> dict[str, Any]:
    """Return what a task is asked to deliver as plain data by argument, without phones and security answer."""
    recipients = [[one.email, one.name] for one in _sorted_recipients(new)]
    plain = {**msgspec.structs.asdict(new), "recipients": recipients, "files": files}
    del plain["security_answer"]
    return plain


def _sorted_recipients(new: NewTransfer) -> list[NewRecipient]:
    # Each gets an email of their own: the order, perhaps that of a set or a query, has no meaning.
    return sorted(new.recipients, key=lambda recipient: recipient.email)


def _secrets_of(new: NewTransfer) -> list[Any]:
    return [new.security_answer, *(recipient.phone for recipient in _sorted_recipients(new))]


def scope_of(account: str, api_key: str, delivery_key: str = "") -> Scope:
    """Return where a connection leads. The API key is long and random, so that its digest needs no salt."""
    return Scope(account, digest_with("key", "", api_key), delivery_key)


def digest(value: Any) -> str:
    """Return a salted digest of anything that JSON can represent. Not for secrets: they could be guessed from it."""
    return digest_with(value, new_salt())


def new_salt() -> str:
    return secrets.token_hex(8)
