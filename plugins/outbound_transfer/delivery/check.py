"""Compare what the service shows, and the files of now, with what was meant."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from outbound_transfer.client.errors import AlreadyDelivered, MalformedResponse, OutboundTransferError, WrongTransfer
from outbound_transfer.client.models import Transfer, identity_of
from outbound_transfer.delivery.attempt import Attempt
from outbound_transfer.delivery.row import Entry, Memory, Row, matches
from outbound_transfer.files.attached import Held, describe_differences
from outbound_transfer.files.sources import Source

#: Finds the files; takes a list for the errors of those that are gone if they are compared with what was sent.
FindSources: TypeAlias = Callable[..., Sequence[Source]]

log = logging.getLogger(__name__)


def is_of(memory: Memory, transfer: Transfer) -> bool:
    """Return whether a transfer has the id, subject and recipients of the row's draft: an id alone proves nothing."""
    is_meant = memory.is_erased or matches(memory.identity, identity_of(transfer))
    return transfer.id == memory.transfer_id and is_meant


def reused_id(transfer_id: str) -> WrongTransfer:
    """Return the error for a draft's id under which the service shows another transfer."""
    return WrongTransfer(
        f"Under the id {transfer_id} is another transfer now, to other recipients or with another subject. Nothing is "
        "done with it."
    )


def check_sent(memory: Memory, transfer: Transfer) -> None:
    """Compare a sent transfer with what was meant.

    :raises WrongTransfer: its id, subject, recipients or files differ.
    """
    files = sorted((name, held.size) for name, held in memory.held.items())
    if not is_of(memory, transfer):
        wrong = f"the service's response is of {transfer.id}, to other recipients or with another subject"
    elif files and transfer.files is not None and files != sorted((file.name, file.size) for file in transfer.files):
        wrong = f"the service says that it holds {sorted(file.name for file in transfer.files)}"
    else:
        return
    raise WrongTransfer(
        f"Transfer {memory.transfer_id} was sent, but {wrong}, and {sorted(memory.held) or 'another'} was meant. "
        "Check the service's web application, where it can be canceled."
    )


def require_file_list(transfer: Transfer) -> None:
    """Check that the service says which files a draft holds: a missing list does not mean that there are none.

    :raises MalformedResponse: the draft comes without its files.
    """
    if transfer.is_draft and transfer.files is None:
        raise MalformedResponse(f"get: the response does not say which files draft {transfer.id} holds")


def is_comparable(memory: Memory, entries: Collection[Entry]) -> bool:
    """Return whether the files of a sent transfer are known, so that they can be compared with those of now.

    :raises AlreadyDelivered: it was sent before these entries were closed.
    """
    if memory.is_erased:
        log.warning("What transfer %s was sent with was erased, and is not compared", memory.transfer_id)
        return False
    if not entries or any(entry.is_open for entry in entries):
        raise AlreadyDelivered(
            f"Somebody else sent transfer {memory.transfer_id} before this task had attached its files. Some may be "
            "missing. Nothing is sent. To deliver them, trigger a new DAG run."
        )
    return True


def require_no_twin(attempt: Attempt, row: Row) -> None:
    """Check that no other task or index of the run sends the same, where there may be one.

    :raises AlreadyDelivered: one does, or has.
    """
    if not attempt.may_have_twins or row.delivery_key:
        return
    if twin := row.rows.find_twin(row.key, row.memory.twin(), attempt.run_of_twins):
        raise AlreadyDelivered(
            f"Transfer {twin}, which another task or index of this run has sent, or is sending, has the same subject, "
            "recipients and files. Nothing is sent. If this is another delivery, give each of them a delivery_key, or "
            "trigger a new DAG run"
        )


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
