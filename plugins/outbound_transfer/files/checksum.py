"""SHA-256 of files: of uploads, from the bytes as they are sent, and of all files, for whoever gets them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from outbound_transfer.client.models import Upload
    from outbound_transfer.files.content import Spool
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


def with_checksums(name: str, sources: Sequence[Source], spool: Spool) -> list[Source]:
    """Return the files, and behind them one that ``sha256sum --check`` reads: a line with SHA-256 and name for each.

    Each file is read once more than it is uploaded; one that changes in between fails the task before the send. No name
    needs to be escaped: the service takes no line breaks and no backslashes (service-api.md, R31).

    :raises InvalidDelivery: another file has the name.
    :raises SourceChanged: a file changed while it was read.
    """
    from outbound_transfer.files.sources import Source, reject_duplicate_names

    lines = Source.of_content(name, spool.write(partial(_write_lines, sources=sources)))
    with_them = [*sources, lines]
    reject_duplicate_names(with_them)
    return with_them


def _write_lines(file: BinaryIO, sources: Sequence[Source]) -> None:
    for source in sources:
        digest = sha256_of(source)
        source.check_unchanged()
        file.write(f"{digest}  {source.name}\n".encode())
