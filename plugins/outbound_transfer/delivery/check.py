"""Compare what the service shows with what was meant: pure; every difference is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from outbound_transfer.delivery.memory import AttachedFile, Memory, matches
from outbound_transfer.files.checksum import sha256_of
from outbound_transfer.protocol.errors import MalformedResponse, OutboundTransferError, WrongTransfer
from outbound_transfer.protocol.identity import has_exactly_files, identity_of
from outbound_transfer.protocol.models import File, Transfer

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.delivery.order import Order
    from outbound_transfer.files.sources import Source


def check_sent(memory: Memory, transfer: Transfer) -> None:
    """Compare a sent transfer with what was attached.

    :raises WrongTransfer: its id, subject, recipients or files differ.
    """
    files = {name: file.size for name, file in memory.files.items()}
    if transfer.id != memory.draft_id or not matches(memory.identity, identity_of(transfer)):
        wrong = f"the service's response is of {transfer.id}, to other recipients or with another subject"
    elif files and transfer.files is not None and not has_exactly_files(transfer, files):
        wrong = f"the service says that it holds {sorted(file.name for file in transfer.files)}"
    else:
        return
    raise WrongTransfer(
        f"Transfer {memory.draft_id} was sent, but {wrong}, and {sorted(files) or 'another'} was meant. Check the "
        "service's web application, where it can be canceled."
    )


def require_file_list(transfer: Transfer) -> None:
    """Check that the service says which files a draft holds: a missing list does not mean that there are none.

    :raises MalformedResponse: the draft comes without its files.
    """
    if transfer.is_draft and transfer.files is None:
        raise MalformedResponse(f"get: the response does not say which files draft {transfer.id} holds")


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


def describe_changes(memory: Memory, order: Order, log: Logger) -> str:
    """Describe how the files to deliver differ from those that were sent; "" if they do not, or are gone."""
    if order.find_sources is None:
        return ""
    gone: list[OutboundTransferError] = []
    sources, attached = order.find_sources(gone), memory.files
    if gone:
        names = {source.name for source in sources}
        attached = {name: file for name, file in attached.items() if name in names}
    differences = describe_differences(attached, sources) if memory.files else []
    if gone and (memory.input is None or "files" in memory.input.differences(order.new, order.files)):
        differences.append("other paths or patterns in files")
    if gone and not differences:
        log.warning("Could not compare sent files with their sources, which are gone: %s", gone[0])
    return "; ".join([*differences[:5], *map(str, gone[:5])]) if differences else ""


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
