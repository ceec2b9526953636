"""Compare what the service shows with what was meant: pure; every difference is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbound_transfer.client.errors import MalformedResponse, WrongTransfer
from outbound_transfer.client.models import has_exactly_files, identity_of
from outbound_transfer.delivery.digests import matches

if TYPE_CHECKING:
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.row import Memory


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
