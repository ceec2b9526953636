"""What a delivery remembers across retries and clears, in the task's state store.

Each try writes under a key of its own and reads the newest of all, so that a try that Airflow has given up cannot
overwrite what a later one stores: an object-storage backend writes the object before Airflow can refuse.
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
from outbound_transfer.protocol.models import File, NewRecipient, NewTransfer, as_json


class StateStore(Protocol):
    """The part of Airflow's task state store that is used."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any, *, retention: Any = None) -> None: ...


class StateLost(OutboundTransferError):
    """The task's state store does not give back what was written to it. A retry may find it well again."""


class PlannedFile(msgspec.Struct):
    """A file that this delivery attaches, or has attached: written before its first byte goes out.

    :ivar file_id: the service's, once it is attached.
    :ivar earlier_sizes: of other versions of it that were planned for this draft, whose upload, given up long ago, may
        still land: what the draft holds by this name is surely this one only where there are none, or by ``file_id``.
    :ivar location: where it comes from, for lineage.
    :ivar sha256: of the bytes that were attached, in hexadecimal; "" until they are.
    :ivar may_land: an upload of it may still be on its way: it was begun, and its end is not known.
    """

    size: int
    version: str
    file_id: str = ""
    earlier_sizes: tuple[int, ...] = ()
    location: str = ""
    sha256: str = ""
    may_land: bool = True

    def is_attached_as(self, file: File) -> bool:
        """Whether ``file`` of the draft is surely this."""
        return file.size == self.size and (self.is_only_version or file.id == self.file_id)

    @property
    def is_only_version(self) -> bool:
        return not self.earlier_sizes


class Match(Enum):
    """Whether a draft was made from what a delivery asks for now."""

    SAME = "made from just this"
    OTHER = "made from something else"
    UNKNOWN = "the same but for secrets, which cannot be compared: the connection's key was replaced"


class DeliveryState(msgspec.Struct):
    """One draft and what was made of it. Holds no secret in clear, and none that can be guessed from it.

    :ivar transfer_id: "" until a draft is created and its id known.
    :ivar is_creating: a create was begun, and may have left a draft whose id is not known.
    :ivar fingerprint: of what the draft was made from but for secrets, with ``salt``.
    :ivar secrets_digest: of the security answer and the phones, keyed with the connection's API key, which is not
        beside it; "" where there are none.
    :ivar key_check: tells whether the API key is still the one that ``secrets_digest`` was keyed with.
    :ivar files_asked: of how the files were asked for: their paths and patterns.
    :ivar identity: of the transfer's subject and recipients as the service shows them; "" where nobody has seen them.
    :ivar account: the site address that the connection led to.
    :ivar clears: as of :func:`.clears_of`.
    :ivar try_number: the try of the task that last compared this with the service.
    :ivar files: by name.
    :ivar sending: a send was begun and its end is not known to have failed.
    """

    transfer_id: str
    is_creating: bool = False
    salt: str = ""
    fingerprint: str = ""
    secrets_digest: str = ""
    key_check: str = ""
    files_asked: str = ""
    identity: str = ""
    account: str = ""
    clears: tuple[int, int] = (0, 0)
    try_number: int = 0
    files: dict[str, PlannedFile] = {}
    sending: bool = False

    def match(self, new: NewTransfer, key: str) -> Match:
        """Whether the draft was made from ``new``; ``key`` is the connection's API key."""
        if digest(_open(new), self.salt) != self.fingerprint:
            return Match.OTHER
        if not (self.secrets_digest or new.secrets):
            return Match.SAME
        if self.key_check and self.key_check != keyed_digest("key", self.salt, key):
            return Match.UNKNOWN
        return Match.SAME if self.secrets_digest == _secrets_digest(new, self.salt, key) else Match.OTHER

    def is_about(self, identity: Identity) -> bool:
        """Whether the transfer under the id is the one that it was; True where nothing is known of it."""
        return not self.identity or self.identity == digest(identity, self.salt)


def made_from(new: NewTransfer, files: Any, key: str, **known: Any) -> DeliveryState:
    """The state of a delivery whose draft is about to be created.

    :param files: as they were asked for.
    :param key: the connection's API key.
    :param known: other fields.
    """
    salt = new_salt()
    return DeliveryState(
        "",
        salt=salt,
        fingerprint=digest(_open(new), salt),
        secrets_digest=_secrets_digest(new, salt, key),
        key_check=keyed_digest("key", salt, key) if new.secrets else "",
        files_asked=digest(files, salt),
        **known,
    )


def _open(new: NewTransfer) -> Any:
    """What is no secret of it."""
    recipients = tuple(NewRecipient(one.email, one.name) for one in _sorted(new))
    return msgspec.to_builtins(msgspec.structs.replace(new, recipients=recipients, security_answer=None))


def _sorted(new: NewTransfer) -> list[NewRecipient]:
    # Each gets an email of its own: their order is that of a set, or of a query, and means nothing.
    return sorted(new.recipients, key=lambda recipient: recipient.email)


def _secrets_digest(new: NewTransfer, salt: str, key: str) -> str:
    hidden = [new.security_answer, *(recipient.phone for recipient in _sorted(new))]
    return keyed_digest(hidden, salt, key) if any(hidden) else ""


def digest(value: Any, salt: str) -> str:
    """Of anything that JSON can say; of what is no secret, as it can be guessed."""
    return hashlib.sha256(f"{salt}{_text(value)}".encode()).hexdigest()


def keyed_digest(value: Any, salt: str, key: str) -> str:
    """The same of secrets: who does not have the key cannot try which value has it, however short the value is."""
    return hmac.new(key.encode(), f"{salt}{_text(value)}".encode(), hashlib.sha256).hexdigest()


def _text(value: Any) -> str:
    # The standard library's JSON escapes what is no valid Unicode, such as a file name in another encoding.
    return json.dumps(value, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    # The XComs of a mapped task come as a lazy sequence, whose text is not its content.
    return list(value) if isinstance(value, Iterable) else str(value)


def new_salt() -> str:
    return secrets.token_hex(16)


_KEY: Final = "outbound_transfer_delivery"


def _key(try_number: int) -> str:
    return f"{_KEY}_try_{try_number}"


def load(store: StateStore, try_number: int) -> DeliveryState | None:
    """What the newest try stored; None where none has, or where the store does not say.

    :raises StateLost: the store answers what was never written to it.
    """
    return newest(store, try_number)[1]


def newest(store: StateStore, try_number: int) -> tuple[int, DeliveryState | None]:
    """The same, with the try that stored it; 0 where none has."""
    tries = ((each, _read(store, each)) for each in range(try_number, 0, -1))
    return next(((each, state) for each, state in tries if state is not None), (0, None))


def _read(store: StateStore, try_number: int) -> DeliveryState | None:
    saved = store.get(_key(try_number), default=None)
    try:
        return None if saved is None else msgspec.convert(saved, DeliveryState)
    except msgspec.ValidationError as error:
        raise StateLost(f"What try {try_number} of this task stored is not what it wrote: {error}") from None


def save(store: StateStore, state: DeliveryState, try_number: int | None = None) -> None:
    """Store for as long as the DAG run exists: forgetting a draft could mean sending it twice.

    :param try_number: of the try that stores it, where that has not compared it with the service.
    """
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # exported, but not in its type stub

    store.set(_key(try_number or state.try_number), as_json(state), retention=NEVER_EXPIRE)


def save_proved(store: StateStore, state: DeliveryState) -> None:
    """Store, and see that it is stored: from then on, that nothing is found says that the store has lost it.

    :raises StateLost: it is not.
    """
    save(store, state)
    if _read(store, state.try_number) != state:
        raise StateLost(
            "The task's state store does not give back what was just written to it, so nothing was created. "
            "Check Airflow's API server and the state store's backend."
        )
