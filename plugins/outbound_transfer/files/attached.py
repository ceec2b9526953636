"""The files that a draft holds, and how they differ from what is to be delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from outbound_transfer.files.checksum import sha256_of

if TYPE_CHECKING:
    from outbound_transfer.files.sources import Source
    from outbound_transfer.files.uploads import FinishedUpload
    from outbound_transfer.protocol.models import File, Transfer


class AttachedFile(msgspec.Struct, frozen=True):
    """A file that the draft holds.

    :ivar size: bytes.
    :ivar sha256: in hexadecimal; "" until it is attached.
    :ivar file_id: the service's; "" until it is attached.
    :ivar fingerprint: of the source; see :class:`.Source`.
    :ivar location: of the source, for lineage.
    """

    size: int
    sha256: str = ""
    file_id: str = ""
    fingerprint: str = ""
    location: str = ""

    @classmethod
    def of(cls, upload: FinishedUpload) -> AttachedFile:
        source = upload.source
        location = source.location.encode(errors="replace").decode()  # Airflow stores only valid Unicode
        return cls(source.size, upload.sha256, upload.file.id, source.fingerprint, location)


def holds_exactly(draft: Transfer, attached: Mapping[str, AttachedFile]) -> bool:
    """Return whether a draft holds the files that were attached, and no others."""
    held = {file.name: (file.id, file.size) for file in draft.files or ()}
    return held == {name: (file.file_id, file.size) for name, file in attached.items()}


def holds_only(files: Sequence[File], attached: Mapping[str, AttachedFile], sources: Sequence[Source]) -> bool:
    """Return whether each file of a draft was attached by its last writer, and is still what is to be delivered."""
    wanted = {source.name: source for source in sources}
    return all(_is_as_wanted(file, attached.get(file.name), wanted.get(file.name)) for file in files)


def _is_as_wanted(file: File, attached: AttachedFile | None, source: Source | None) -> bool:
    if attached is None or source is None:
        return False
    is_attached = (file.id, file.size) == (attached.file_id, attached.size)
    return is_attached and (source.size, source.fingerprint) == (attached.size, attached.fingerprint)


def describe_differences(attached: Mapping[str, AttachedFile], sources: Sequence[Source]) -> list[str]:
    """Describe how files differ from those that were sent.

    A file with the same bytes is the same file, whenever it was written: it is read only if its fingerprint changed.
    """
    names = {source.name for source in sources}
    missing = [f"{name} is not among them any more" for name in attached if name not in names]
    return missing + [words for source in sources if (words := _describe_difference(attached.get(source.name), source))]


def _describe_difference(attached: AttachedFile | None, source: Source) -> str:
    if attached is None:
        return f"{source.name} was not among them"
    if attached.size != source.size:
        return f"{source.name} has {source.size} bytes and had {attached.size}"
    if attached.fingerprint != source.fingerprint and attached.sha256 != sha256_of(source):
        return f"{source.name} has other content"
    return ""
