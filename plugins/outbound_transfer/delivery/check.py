"""Compare what the service shows with what was meant: pure; every difference is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from outbound_transfer.delivery.memory import Memory
from outbound_transfer.files.attached import describe_differences
from outbound_transfer.protocol.digests import matches
from outbound_transfer.protocol.errors import MalformedResponse, OutboundTransferError, WrongTransfer
from outbound_transfer.protocol.identity import has_exactly_files, identity_of
from outbound_transfer.protocol.models import Transfer

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.delivery.order import Order


def check_sent(memory: Memory, transfer: Transfer) -> None:
    """Compare a sent transfer with what was attached.

    :raises WrongTransfer: its id, subject, recipients or files differ.
    """
    files = {name: file.size for name, file in memory.files.items()}
    is_meant = transfer.id == memory.draft_id and matches(memory.identity, identity_of(transfer))
    require_meant(transfer, memory.draft_id, files, is_meant=is_meant)


def require_meant(transfer: Transfer, draft_id: str, files: Mapping[str, int], *, is_meant: bool) -> None:
    """Check that a sent transfer is what was meant.

    :param files: sizes in bytes, by name; none if they are not known.
    :param is_meant: whether id, subject and recipients are.
    :raises WrongTransfer: it is not.
    """
    if not is_meant:
        wrong = f"the service's response is of {transfer.id}, to other recipients or with another subject"
    elif files and transfer.files is not None and not has_exactly_files(transfer, files):
        wrong = f"the service says that it holds {sorted(file.name for file in transfer.files)}"
    else:
        return
    raise WrongTransfer(
        f"Transfer {draft_id} was sent, but {wrong}, and {sorted(files) or 'another'} was meant. Check the "
        "service's web application, where it can be canceled."
    )


def require_file_list(transfer: Transfer) -> None:
    """Check that the service says which files a draft holds: a missing list does not mean that there are none.

    :raises MalformedResponse: the draft comes without its files.
    """
    if transfer.is_draft and transfer.files is None:
        raise MalformedResponse(f"get: the response does not say which files draft {transfer.id} holds")


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
