"""SHA-256 of what is uploaded, taken from the bytes as they are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from outbound_transfer.protocol.exchange import Upload

if TYPE_CHECKING:
    from outbound_transfer.sources import Source


class Digest:
    """An upload whose bytes are digested on their way: read once, whatever the number of tries.

    :ivar upload: to be sent in the place of the one given.
    :ivar sha256: of the last try that read the file to its end, in hexadecimal; "" until one has.
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
    """The SHA-256 of a file as it is now, in hexadecimal.

    :raises SourceError: it cannot be read to its end.
    """
    digest = Digest(source.upload())
    for _ in digest.upload.body():
        pass
    return digest.sha256
