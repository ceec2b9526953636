"""The files that a draft holds, and how they differ from those to deliver."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from outbound_transfer.client.models import File
    from outbound_transfer.files.sources import Source


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A file that a draft holds, in at most 130 bytes of JSON.

    :ivar id: the service's.
    :ivar size: bytes.
    :ivar digest: SHA-256 of its bytes, in base64.
    :ivar fingerprint: of the source, shortened; "" if the file is to be removed.
    :ivar is_doubtful: another request may still upload a file of this name.
    """

    id: str
    size: int
    digest: str
    fingerprint: str
    is_doubtful: bool = False

    @classmethod
    def of(cls, source: Source, file: File, sha256: str, *, is_doubtful: bool) -> Held:
        """Return what an upload attached.

        :param file: the service's record.
        :param sha256: of its bytes, in hexadecimal.
        """
        digest = urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
        return cls(file.id, source.size, digest, shorten(source), is_doubtful)

    @property
    def sha256(self) -> str:
        """SHA-256 of its bytes, in hexadecimal."""
        return urlsafe_b64decode(f"{self.digest}=").hex()


def shorten(source: Source) -> str:
    """Return the fingerprint of a source as a draft's row keeps it."""
    digest = hashlib.sha256(source.fingerprint.encode(errors="backslashreplace")).digest()
    return urlsafe_b64encode(digest[:12]).decode()


def describe_differences(held: Mapping[str, Held], sources: Sequence[Source]) -> list[str]:
    """Describe how files differ from those that were sent.

    A file with the same bytes is the same file, whenever it was written: it is read only if its fingerprint changed.
    """
    names = {source.name for source in sources}
    missing = [f"{name} is not among them any more" for name in held if name not in names]
    return missing + [words for source in sources if (words := _describe_difference(held.get(source.name), source))]


def _describe_difference(held: Held | None, source: Source) -> str:
    if held is None:
        return f"{source.name} was not among them"
    if held.size != source.size:
        return f"{source.name} has {source.size} bytes and had {held.size}"
    if held.fingerprint != shorten(source) and held.sha256 != source.sha256():
        return f"{source.name} has other content"
    return ""
