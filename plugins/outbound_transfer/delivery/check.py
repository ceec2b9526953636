"""Compare what the service shows, and the files of now, with what was meant."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from outbound_transfer.client.errors import MalformedResponse, WrongTransfer
from outbound_transfer.client.models import has_exactly_files, identity_of
from outbound_transfer.delivery.digests import matches
from outbound_transfer.files.attached import describe_differences

if TYPE_CHECKING:
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.row import Memory
    from outbound_transfer.files.attached import Held
    from outbound_transfer.files.sources import Source

#: Finds the files; takes a list for the errors of those that are gone if they are compared with what was sent.
FindSources: TypeAlias = Callable[..., Sequence["Source"]]

log = logging.getLogger(__name__)


def is_of(memory: Memory, transfer: Transfer) -> bool:
    """Return whether a transfer has the id, subject and recipients of the row's draft: an id alone proves nothing."""
    is_meant = memory.is_erased or matches(memory.identity, identity_of(transfer))
    return transfer.id == memory.transfer_id and is_meant


def check_sent(memory: Memory, transfer: Transfer) -> None:
    """Compare a sent transfer with what was meant.

    :raises WrongTransfer: its id, subject, recipients or files differ.
    """
    files = {name: held.size for name, held in memory.held.items()}
    if not is_of(memory, transfer):
        wrong = f"the service's response is of {transfer.id}, to other recipients or with another subject"
    elif files and transfer.files is not None and not has_exactly_files(transfer, files):
        wrong = f"the service says that it holds {sorted(file.name for file in transfer.files)}"
    else:
        return
    raise WrongTransfer(
        f"Transfer {memory.transfer_id} was sent, but {wrong}, and {sorted(files) or 'another'} was meant. Check the "
        "service's web application, where it can be canceled."
    )


def require_file_list(transfer: Transfer) -> None:
    """Check that the service says which files a draft holds: a missing list does not mean that there are none.

    :raises MalformedResponse: the draft comes without its files.
    """
    if transfer.is_draft and transfer.files is None:
        raise MalformedResponse(f"get: the response does not say which files draft {transfer.id} holds")


def changed_files(held: Mapping[str, Held], find_sources: FindSources) -> str:
    """Describe how the files to deliver differ from those that were sent; "" if they do not, or are gone."""
    gone: list[OutboundTransferError] = []
    sources = find_sources(gone)
    names = {source.name for source in sources} if gone else held.keys()
    differences = describe_differences({name: each for name, each in held.items() if name in names}, sources)
    if gone and not differences:
        log.warning("Could not compare sent files with their sources, which are gone: %s", gone[0])
        return ""
    return "; ".join([*differences[:5], *map(str, gone[:5])])
