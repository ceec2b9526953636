"""Compare a transfer at the service with the state that the task stored: pure; every mismatch is an error."""

from __future__ import annotations

from dataclasses import dataclass

from outbound_transfer.delivery import state as states
from outbound_transfer.delivery.state import DeliveryState
from outbound_transfer.protocol.errors import DraftChanged, MalformedResponse, OutboundTransferError, WrongTransfer
from outbound_transfer.protocol.identity import has_exactly_files, identity_of
from outbound_transfer.protocol.models import File, Transfer


class AlreadyDelivered(OutboundTransferError):
    """This run, or this delivery key, has sent a transfer, or may have, and must not send another one."""


class DraftOutdated(Exception):
    """Control flow, not an error: a draft was removed, as what it was made from has changed right before its send."""


@dataclass
class DraftState:
    """A draft, or the sent transfer that it became, with what this task knows of it.

    :ivar state: stored in the task's state store.
    :ivar transfer: as the service returned it.
    :ivar attached: the files that the service holds for it, by name.
    :ivar is_record_missing: the record of the try before is missing, so that try may have attached other files too.
    """

    state: DeliveryState
    transfer: Transfer
    attached: dict[str, File]
    is_record_missing: bool = False


def already_delivered(transfer_id: str, how: str, delivery_key: str = "") -> AlreadyDelivered:
    """Return the error for a run that sent a transfer with other input.

    :param how: in what the sent transfer differs.
    :param delivery_key: the delivery's key, if it was sent under one.
    """
    if delivery_key:
        return AlreadyDelivered(
            f"Delivery key {delivery_key!r} has already delivered transfer {transfer_id}, {how}. Nothing is sent; to "
            "deliver this, give it another delivery_key."
        )
    return AlreadyDelivered(
        f"This run has already delivered transfer {transfer_id}, {how}. "
        "Trigger a new DAG run to deliver this, or set resend=True and clear the task."
    )


def check_account(transfer_id: str, made_in: str, connected_to: str, *, is_sending: bool) -> None:
    """Compare the account that a transfer was made in with the one that the connection leads to.

    :raises WrongTransfer: they differ, so the id may belong to another transfer.
    """
    if made_in != connected_to:
        raise WrongTransfer(
            f"The connection leads to {connected_to}, and led to {made_in} when the run began with transfer "
            f"{transfer_id}{', perhaps sent there' if is_sending else ''}. Nothing is done here."
        )


def check_identity(state: DeliveryState, transfer: Transfer) -> None:
    """Compare subject and recipients with those that the task saw under this id, and note them in ``state``.

    :raises WrongTransfer: they differ.
    """
    if not state.matches_identity(identity_of(transfer)):
        raise WrongTransfer(
            f"Under the id {state.transfer_id} is another transfer now, to other recipients or with another subject"
            f"{'; the one that was meant may have been sent' if state.send_started else ''}."
        )
    state.identity = states.digest(identity_of(transfer), state.salt)


def check_sent(state: DeliveryState, transfer: Transfer) -> None:
    """Compare a sent transfer with what was planned.

    :raises WrongTransfer: its id, subject, recipients or files differ.
    """
    planned = {name: file.size for name, file in state.files.items()}
    if transfer.id != state.transfer_id or not state.matches_identity(identity_of(transfer)):
        wrong = f"the service's response is of {transfer.id}, to other recipients or with another subject"
    elif planned and transfer.files is not None and not has_exactly_files(transfer, planned):
        wrong = f"the service says that it holds {sorted(file.name for file in transfer.files)}"
    else:
        return
    raise WrongTransfer(
        f"Transfer {state.transfer_id} was sent, but {wrong}, and {sorted(planned) or 'another'} was meant. Check "
        "the service's web application, where it can be canceled."
    )


def check_attached(state: DeliveryState, draft: Transfer) -> None:
    """Compare the files that a draft holds with the records of those that were attached to it.

    :raises DraftChanged: a record is missing, is another one, or was added.
    """
    attached = sorted((name, file.file_id, file.size) for name, file in state.files.items())
    held = sorted((file.name, file.id, file.size) for file in draft.files or ())
    if held != attached:
        raise DraftChanged(
            f"Draft {draft.id} does not hold the files that were attached to it, but {[name for name, *_ in held]}: "
            "another try or task has changed it meanwhile. Nothing is sent; a retry attaches what is missing"
        )


def require_file_list(transfer: Transfer) -> None:
    """Check that the service says which files a draft holds: a missing list does not mean that there are none.

    :raises MalformedResponse: the draft comes without its files.
    """
    if transfer.is_draft and transfer.files is None:
        raise MalformedResponse(f"get: the response does not say which files draft {transfer.id} holds")
