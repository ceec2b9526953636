"""The state of a delivery across retries and clears, in the task's state store.

Each try writes under its own key and reads the newest of all keys. So a try that Airflow has given up cannot overwrite
the state of a later one: an object-storage backend writes the object before Airflow can refuse.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.protocol.identity import Identity
from outbound_transfer.protocol.models import File, NewRecipient, NewTransfer, to_builtins


class StateStore(Protocol):
    """The part of Airflow's task state store that the delivery uses."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any, *, retention: Any = None) -> None: ...


class StateLost(OutboundTransferError):
    """The task's state store does not return what was written to it. A retry may succeed."""


class PlannedFile(msgspec.Struct):
    """A file that this delivery attaches, or has attached: stored before its first byte is sent.

    :ivar size: bytes.
    :ivar fingerprint: see :class:`.Source`.
    :ivar file_id: the service's id, once the file is attached.
    :ivar earlier_sizes: sizes of other versions of the file that were planned for this draft. Their uploads may still
        arrive, so a file of this name on the draft is certainly this version only if there are none, or by ``file_id``.
    :ivar location: of the source, for lineage.
    :ivar sha256: of the attached bytes, in hexadecimal; "" until they are attached.
    :ivar may_be_in_flight: an upload of the file was started, and may still arrive.
    """

    size: int
    fingerprint: str
    file_id: str = ""
    earlier_sizes: tuple[int, ...] = ()
    location: str = ""
    sha256: str = ""
    may_be_in_flight: bool = True

    def is_attached_as(self, file: File) -> bool:
        """Return whether ``file`` of the draft is certainly this version."""
        return file.size == self.size and (self.is_only_version or file.id == self.file_id)

    @property
    def is_only_version(self) -> bool:
        """Whether no other version of the file was planned for the draft."""
        return not self.earlier_sizes


class PossibleSend(msgspec.Struct, frozen=True):
    """A delivery may have been sent in this run although its task has no record of it.

    :ivar reason: why.
    :ivar exactly: whether only a transfer with exactly the same files may be it.
    :ivar found: the id of one that is it, whatever its files are.
    """

    reason: str
    exactly: bool = False
    found: str = ""


class Match(Enum):
    """Whether a draft was made from the input that the task has now."""

    SAME = "made from the same input"
    OTHER = "made from other input"
    UNKNOWN = "the same except for secrets, which cannot be compared: the connection's key was replaced"


class DeliveryState(msgspec.Struct):
    """One draft and what became of it. Contains no secret in clear, and none that can be guessed from it.

    :ivar transfer_id: "" until a draft is created and its id known.
    :ivar is_creating: a create was started, and may have left a draft whose id is not known.
    :ivar created_nothing: no try of the task has started a create that may have been applied; False if that is not
        known for certain.
    :ivar fingerprint: digest of the input of the draft without its secrets, with ``salt``.
    :ivar secrets_digest: digest of the security answer and the phones, keyed with the connection's API key, which is
        not stored here; "" if there are none.
    :ivar key_check: digest of the connection's API key: detects that it was replaced.
    :ivar files_digest: digest of the operator's ``files``: paths and patterns.
    :ivar identity: digest of the transfer's subject and recipients as the service shows them; "" if never read.
    :ivar account: the site address that the connection led to.
    :ivar has_moved: the connection led to another account, or had another key, earlier in the run.
    :ivar clear_counters: see :func:`.read_clear_counters`.
    :ivar try_number: the try of the task that last compared this state with the service.
    :ivar files: by name.
    :ivar send_started: a send was started and is not known to have failed.
    :ivar possible_send: why the service must be asked before this draft is sent; None if the tries rule a send out.
    :ivar overruled: a possible send that was not asked about, as the task was cleared to send again (``resend``).
    :ivar overruled_in: the clear counters of the try that overruled it before it created anything.
    :ivar overruled_for: digest of what that try was asked to deliver; see :meth:`digest_request`.
    :ivar found: the id of a transfer that another index or task of the run has sent, and that is this delivery.
    :ivar replaced: what the task had sent before, if this draft is made to send once more (``resend``).
    :ivar made_by: the task that made the draft, if the state is that of a delivery key; else "".
    """

    transfer_id: str
    is_creating: bool = False
    created_nothing: bool = False
    salt: str = ""
    fingerprint: str = ""
    secrets_digest: str = ""
    key_check: str = ""
    files_digest: str = ""
    identity: str = ""
    account: str = ""
    has_moved: bool = False
    clear_counters: tuple[int, int] = (0, 0)
    try_number: int = 0
    files: dict[str, PlannedFile] = {}
    send_started: bool = False
    possible_send: PossibleSend | None = None
    overruled: PossibleSend | None = None
    overruled_in: tuple[int, int] = (0, 0)
    overruled_for: str = ""
    found: str = ""
    replaced: DeliveryState | None = None
    made_by: str = ""

    def match(self, new: NewTransfer, key: str) -> Match:
        """Return whether the draft was made from ``new``; ``key`` is the connection's API key."""
        if digest(_without_secrets(new), self.salt) != self.fingerprint:
            return Match.OTHER
        if not (self.secrets_digest or new.secrets):
            return Match.SAME
        if not self.is_of_key(key):
            return Match.UNKNOWN
        return Match.SAME if self.secrets_digest == _secrets_digest(new, self.salt, key) else Match.OTHER

    def digest_request(self, new: NewTransfer, files: Any) -> str:
        """Return a digest of what a task is asked to deliver, without its secrets.

        :param files: the operator's argument, normalized.
        """
        return digest([_without_secrets(new), files], self.salt)

    def is_of_key(self, key: str) -> bool:
        """Return whether the connection's API key is still the same."""
        return self.key_check == key_check(self.salt, key)

    @property
    def has_request(self) -> bool:
        """Whether the state is about a delivery; otherwise it says only that a try began."""
        return bool(self.transfer_id or self.fingerprint)

    def matches_identity(self, identity: Identity) -> bool:
        """Return whether the transfer under the id is still the same one; True if it was never read."""
        return not self.identity or self.identity == digest(identity, self.salt)


def state_from_inputs(new: NewTransfer, files: Any, key: str, **known: Any) -> DeliveryState:
    """Return the state of a delivery whose draft is about to be created.

    :param files: the operator's argument, normalized.
    :param key: the connection's API key.
    :param known: other fields of the state.
    """
    salt = new_salt()
    return DeliveryState(
        "",
        salt=salt,
        fingerprint=digest(_without_secrets(new), salt),
        secrets_digest=_secrets_digest(new, salt, key),
        key_check=key_check(salt, key),
        files_digest=digest(files, salt),
        **known,
    )


def _without_secrets(new: NewTransfer) -> Any:
    """Return the input without phones and security answer, as plain data."""
    recipients = tuple(NewRecipient(one.email, one.name) for one in _sorted_recipients(new))
    return msgspec.to_builtins(msgspec.structs.replace(new, recipients=recipients, security_answer=None))


def _sorted_recipients(new: NewTransfer) -> list[NewRecipient]:
    # Each gets an email of their own: the order, perhaps that of a set or a query, has no meaning.
    return sorted(new.recipients, key=lambda recipient: recipient.email)


def _secrets_digest(new: NewTransfer, salt: str, key: str) -> str:
    hidden = [new.security_answer, *(recipient.phone for recipient in _sorted_recipients(new))]
    return keyed_digest(hidden, salt, key) if any(hidden) else ""


def digest(value: Any, salt: str) -> str:
    """Return a digest of anything that JSON can represent. Not for secrets: they could be guessed from it."""
    return hashlib.sha256(f"{salt}{_canonical_json(value)}".encode()).hexdigest()


def keyed_digest(value: Any, salt: str, key: str) -> str:
    """Return a digest of secrets. Without the key, nobody can guess the value from it, however short it is."""
    return hmac.new(key.encode(), f"{salt}{_canonical_json(value)}".encode(), hashlib.sha256).hexdigest()


def _canonical_json(value: Any) -> str:
    # The standard library's JSON escapes invalid Unicode, such as a file name in another encoding.
    return json.dumps(value, default=_json_default, sort_keys=True)


def _json_default(value: Any) -> Any:
    # The XComs of a mapped task come as a lazy sequence, whose text is not its content.
    return list(value) if isinstance(value, Iterable) else str(value)


def key_check(salt: str, key: str) -> str:
    """Return a digest of the connection's API key."""
    return keyed_digest("key", salt, key)


def new_salt() -> str:
    return secrets.token_hex(16)


_KEY: Final = "outbound_transfer_delivery"

#: Key of the number of the newest try that has begun.
_NEWEST_KEY: Final = f"{_KEY}_newest"


#: What a store has after an attempt whose record is missing.
MISSING_RECORD: Final = {_NEWEST_KEY: 1}


def _key(try_number: int) -> str:
    return f"{_KEY}_try_{try_number}"


def begin_attempt(store: StateStore, try_number: int) -> tuple[int, int, DeliveryState | None]:
    """Note that the try has begun.

    :return: the number of the newest try that had begun before, 0 if none had; and what :func:`load_latest` returns.
    :raises StateLost: a later try has begun.
    """
    newest = check_newest(store, try_number)
    at, latest = load_latest(store, try_number)
    if newest < try_number:
        store.set(_NEWEST_KEY, try_number, retention=_never_expire())
    return newest, at, latest


def check_newest(store: StateStore, try_number: int) -> int:
    """Check that no later try has begun.

    :return: the number of the newest try that has begun, 0 if none has.
    :raises StateLost: a later try has begun.
    """
    newest = _newest_attempt(store)
    if newest > try_number:
        state = _read(store, newest)
        sent = f", and sent transfer {state.transfer_id}, or may have" if state and state.send_started else ""
        raise StateLost(
            f"This is try {try_number} of the task, and try {newest} has begun{sent}: Airflow has given this try up, "
            "or the task instance was deleted and created again. Nothing is sent. In the second case, clear the task "
            f"until its try number is {newest} or more."
        )
    return newest


def _newest_attempt(store: StateStore) -> int:
    stored = store.get(_NEWEST_KEY, default=None)
    return stored if isinstance(stored, int) else 0


def load(store: StateStore, try_number: int) -> DeliveryState | None:
    """Return what the newest try stored, or None if no try stored anything or the store has lost it.

    :param try_number: the try that asks. A task instance that was created again counts its tries from 1.
    :raises StateLost: the store returns what was never written to it.
    """
    return load_latest(store, max(try_number, _newest_attempt(store)))[1]


def load_latest(store: StateStore, try_number: int) -> tuple[int, DeliveryState | None]:
    """Return what the newest try up to ``try_number`` stored, and that try's number; (0, None) if none did.

    If the try before stored nothing, it may have attached another version of each file.
    """
    for number in range(try_number, 0, -1):
        if (state := _read(store, number)) is not None:
            if number < try_number - 1:
                for plan in state.files.values():
                    plan.earlier_sizes = plan.earlier_sizes or (plan.size,)
            return number, state
    return 0, None


def _read(store: StateStore, try_number: int) -> DeliveryState | None:
    saved = store.get(_key(try_number), default=None)
    try:
        return None if saved is None else msgspec.convert(saved, DeliveryState)
    except msgspec.ValidationError as error:
        raise StateLost(f"The state that try {try_number} of this task stored is invalid: {error}") from None


def save(store: StateStore, state: DeliveryState, try_number: int | None = None) -> None:
    """Store the state for as long as the DAG run exists: a forgotten draft could be sent twice.

    :param try_number: the try that stores it, if that try has not compared it with the service.
    """
    store.set(_key(try_number or state.try_number), to_builtins(state), retention=_never_expire())


def _never_expire() -> Any:
    from outbound_transfer.airflow_compat.names import NEVER_EXPIRE

    return NEVER_EXPIRE


def save_verified(store: StateStore, state: DeliveryState, try_number: int | None = None) -> None:
    """Store the state and read it back: if a later try finds nothing, the store has lost it.

    :param try_number: see :func:`save`.
    :raises StateLost: the store does not return what was written.
    """
    save(store, state, try_number)
    if _read(store, try_number or state.try_number) != state:
        raise StateLost(
            "The task's state store does not return what was just written to it, so nothing was created. "
            "Check Airflow's API server and the state store's backend."
        )
