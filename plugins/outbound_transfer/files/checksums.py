"""A file with the checksums of the others, for whoever gets them: ``sha256sum --check`` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import BinaryIO

from outbound_transfer.files.content import Spool
from outbound_transfer.files.sources import Source, reject_duplicate_names


def with_checksums(name: str, sources: Sequence[Source], spool: Spool) -> list[Source]:
    """Return the files, and behind them one with a line for each: its SHA-256 and its name.

    Each file is read once more than it is uploaded; one that changes in between fails the task before the send. No name
    needs to be escaped: the service takes no line breaks and no backslashes (service-api.md, R31).

    :raises InvalidDelivery: another file has the name.
    :raises SourceChanged: a file changed while it was read.
    """
    held = spool.write(partial(_write_lines, sources=sources))
    with_them = [*sources, Source("", name, *held.stat(), held)]
    reject_duplicate_names(with_them)
    return with_them


def _write_lines(file: BinaryIO, sources: Sequence[Source]) -> None:
    for source in sources:
        digest = sha256()
        for chunk in source.upload().body():
            digest.update(chunk)
        source.check_unchanged()
        file.write(f"{digest.hexdigest()}  {source.name}\n".encode())
