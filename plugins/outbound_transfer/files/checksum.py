"""SHA-256 of uploads, computed from the bytes as they are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from outbound_transfer.protocol.messages import Upload

if TYPE_CHECKING:
    from outbound_transfer.files.sources import Source


class HashingUpload:
    """An upload that computes its checksum while it is sent: each attempt reads the file only once.

    :ivar upload: to send instead of the one given.
    :ivar sha256: of the last attempt that read the file to its end, in hexadecimal; "" until one did.
    """

    def __init__(self, upload: Upload) -> None:
        self.upload = replace(upload, chunks=lambda: self._chunks(upload.chunks()))
        self.sha256 = ""

    def _chunks(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
            yield chunk
        self.sha256 = digest.hexdigest()


def sha256_of(source: Source) -> str:
    """Return the SHA-256 of a file as it is now, in hexadecimal.

    :raises SourceError: it cannot be read to its end.
    """
    hashing = HashingUpload(source.upload())
    for _ in hashing.upload.body():
        pass
    return hashing.sha256
