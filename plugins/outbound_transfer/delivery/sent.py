"""Check that a transfer was sent as intended: compare it with its row and, after a clear, with the current files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from outbound_transfer.client import errors
from outbound_transfer.client.models import Transfer
from outbound_transfer.delivery.row import Entry, Memory, is_of
from outbound_transfer.files.attached import Held, shorten
from outbound_transfer.files.sources import Source

#: Finds the files; if they are compared with sent ones, gets a list for the errors of those that are gone.
FindSources: TypeAlias = Callable[..., Sequence[Source]]

log: Final[Any] = logging.getLogger(__name__)


def check_sent(memory: Memory, transfer: Transfer) -> None:
    """:raises WrongTransfer: id, subject, recipients or files of a sent transfer are not what was meant.

    :raises AlreadyDelivered: it was sent before all of them were attached.
    """
    changed_files(memory, memory.entries.values(), None)
    files = sorted((name, held.size) for name, held in memory.held.items())
    if not is_of(memory, transfer):
        wrong = f"the service's response shows {transfer.id} with other recipients or another subject"
    elif files and transfer.files is not None and files != sorted((file.name, file.size) for file in transfer.files):
        wrong = f"the service says that it holds {sorted(file.name for file in transfer.files)}"
    else:
        return
    raise errors.WrongTransfer(
        f"Transfer {memory.transfer_id} was sent, but {wrong}, and {sorted(memory.held) or 'another'} was meant. "
        "Check the service's web application, where it can be canceled."
    )


def changed_files(memory: Memory, entries: Collection[Entry], find_sources: FindSources | None) -> str:
    """Describe how the current files differ from those that were sent; "" if they do not, or are gone or erased.

    :raises AlreadyDelivered: it was sent before the entries were closed.
    """
    if memory.is_erased:
        log.warning("The record of the files of transfer %s was erased, so they are not compared", memory.transfer_id)
        return ""
    if not entries or any(entry.is_open for entry in entries):
        raise errors.AlreadyDelivered(
            f"Somebody else sent transfer {memory.transfer_id} before all files were attached to it. Some may be "
            "missing. Nothing is sent. To deliver them, trigger a new Dag run."
        )
    if find_sources is None:
        return ""
    gone: list[errors.OutboundTransferError] = []
    sources = find_sources(gone)
    held = {name: each for entry in entries for name, each in entry.files.items() if each}
    names = {source.name for source in sources} if gone else held.keys()
    differences = _differences({name: each for name, each in held.items() if name in names}, sources)
    if gone and not differences:
        log.warning("Could not compare sent files with their sources, which are gone: %s", gone[0])
        return ""
    return "; ".join([*differences[:5], *(str(error).rstrip(".") for error in gone[:5])])


def _differences(held: Mapping[str, Held], sources: Sequence[Source]) -> list[str]:
    """Describe how files differ from those that were sent.

    A file with the same bytes is the same file, whenever it was written: it is read only if its fingerprint changed.
    """
    names = {source.name for source in sources}
    differences = [f"{name} is no longer among them" for name in held if name not in names]
    for source in sources:
        before = held.get(source.name)
        if before is None:
            differences.append(f"{source.name} was not among them")
        elif before.size != source.size:
            differences.append(f"{source.name} has {source.size} bytes and had {before.size}")
        elif before.fingerprint != shorten(source) and before.sha256 != source.sha256():
            differences.append(f"{source.name} has other content")
    return differences
