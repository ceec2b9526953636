"""What a delivery remembers across retries and clears, in the task's state store."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from outbound_transfer.protocol.models import File, NewTransfer


class StateStore(Protocol):
    """The part of Airflow's task state store that is used."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any, *, retention: Any = None) -> None: ...


class PlannedFile(msgspec.Struct):
    """A file that this delivery attaches, or has attached: written before its first byte goes out.

    :ivar file_id: the service's, once it is attached.
    :ivar sole: no other version of it was ever planned for this draft, so what the draft holds by this name is this
        one. Otherwise an upload of another version, given up long ago, may still land: only ``file_id`` tells then.
    :ivar location: where it comes from, for lineage.
    :ivar sha256: of the bytes that were attached, in hexadecimal; "" where no ledger asks for it.
    """

    size: int
    version: str
    file_id: str = ""
    sole: bool = True
    location: str = ""
    sha256: str = ""

    def is_attached_as(self, file: File) -> bool:
        """Whether ``file`` of the draft is surely this."""
        return file.size == self.size and (self.sole or file.id == self.file_id)


class DeliveryState(msgspec.Struct):
    """One draft and what was made of it. Holds no secret in clear.

    :ivar fingerprint: of what the draft was made from, with ``salt``.
    :ivar clears: tells an automatic retry from a clear: a clear raises the task's ``max_tries``.
    :ivar try_number: the try of the task that last compared this with the service.
    :ivar files: by name.
    :ivar sending: a send was begun and its end is not known to have failed.
    """

    transfer_id: str
    salt: str = ""
    fingerprint: str = ""
    clears: int = 0
    try_number: int = 0
    files: dict[str, PlannedFile] = {}
    sending: bool = False

    def is_of(self, new: NewTransfer | None, files: Any) -> bool:
        """Whether the draft was made from just this."""
        return fingerprint(new, files, self.salt) == self.fingerprint


def fingerprint(new: NewTransfer | None, files: Any, salt: str) -> str:
    """A digest of a delivery. Slow and salted, since answers and phone numbers are easily guessed."""
    # The standard library's JSON escapes what is no valid Unicode, such as a file name in another encoding.
    made_from = json.dumps([msgspec.to_builtins(new), files], default=_plain, sort_keys=True)
    return hashlib.scrypt(made_from.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1, dklen=16).hex()


def _plain(value: Any) -> Any:
    # The XComs of a mapped task come as a lazy sequence, whose text is not its content.
    return list(value) if isinstance(value, Iterable) else str(value)


def new_salt() -> str:
    return secrets.token_hex(16)


_KEY: Final = "outbound_transfer_delivery"


def load(store: StateStore) -> DeliveryState | None:
    """What an earlier try stored; None in the first."""
    saved = store.get(_KEY, default=None)
    return None if saved is None else msgspec.convert(saved, DeliveryState)


def save(store: StateStore, state: DeliveryState) -> None:
    """Store for as long as the DAG run exists: forgetting a draft could mean sending it twice."""
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # exported, but not in its type stub

    store.set(_KEY, msgspec.to_builtins(state), retention=NEVER_EXPIRE)
