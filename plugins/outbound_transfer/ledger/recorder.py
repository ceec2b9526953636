"""Collects what one task knows about its deliveries, step by step."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, Final, TypeVar

import msgspec

from outbound_transfer.airflow_compat.names import AirflowFailException, redact
from outbound_transfer.delivery.observer import DeliveryObserver
from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.protocol.models import DRAFT, Transfer
from outbound_transfer.protocol.outcomes import IN_DOUBT, REHEARSED
from outbound_transfer.protocol.personal_data import ADDRESS, AS_THEY_ARE, RecipientNaming
from outbound_transfer.warehouse.deliveries import (
    DISCARDED,
    MAX_ERROR,
    DeliveryFailure,
    DeliveryUpdate,
    RecipientPickup,
    TaskRef,
)
from outbound_transfer.warehouse.timestamps import format_timestamp, parse_event_timestamp, utc_now

log = logging.getLogger(__name__)

#: An email address, as far as it can be recognized in a text.
_ADDRESS: Final = re.compile(r"(\"[^\"]*\"|[^\s,;<>\"']+)@[^\s,;<>\"']+")


Step = TypeVar("Step", bound=Callable[..., None])


def _never_raises(step: Step) -> Step:
    """Make a step do nothing if there is no ledger, and log its errors instead of raising them."""

    @wraps(step)
    def recorded(self: DeliveryRecorder, *args: Any, **kwargs: Any) -> None:
        try:
            if self.is_enabled:
                step(self, *args, **kwargs)
        except Exception as error:
            log.warning(
                "Could not record a step in the delivery ledger: %s: %s", type(error).__name__, redacted_summary(error)
            )

    return recorded  # type: ignore[return-value]


def _ignore(update: DeliveryUpdate | DeliveryFailure) -> None:
    pass


class DeliveryRecorder(DeliveryObserver):
    """Records the steps of a task's deliveries. A step never raises, and only a send waits for the ledger.

    :param account: returns the name of the deliveries' account; called only for a task that has a transfer.
    :param task: the task; None if there is no ledger, and nothing is recorded then.
    :param submit: called with each :class:`DeliveryUpdate`, which has all that is known about one delivery so far, and
        with the :class:`DeliveryFailure` of a try that has no draft.
    :param flush: called before a send; returns when what was submitted is written, or a while later.
    :param subject: subject of the draft that the task makes; None if it makes none.
    :param naming: how the recipients are recorded.
    """

    def __init__(
        self,
        account: Callable[[], str] = str,
        task: TaskRef | None = None,
        submit: Callable[[DeliveryUpdate | DeliveryFailure], Any] = _ignore,
        *,
        flush: Callable[[], object] = lambda: None,
        subject: str | None = None,
        naming: RecipientNaming = AS_THEY_ARE,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._account, self._task, self._submit, self._flush, self._clock = account, task, submit, flush, clock
        self._subject, self._naming = subject, naming
        self._updates: dict[str, DeliveryUpdate] = {}
        self._current = ""

    @property
    def is_enabled(self) -> bool:
        """Whether steps are recorded."""
        return self._task is not None

    @_never_raises
    def set_current(self, transfer_id: str) -> None:
        """Attribute the task's next error to this delivery."""
        self._current = transfer_id

    @_never_raises
    def record_transfer(self, transfer: Transfer, *, recipients: int | None = None) -> None:
        """Record a transfer as the service returned it.

        :param recipients: number of recipients, if ``transfer`` does not have them.
        """
        if not transfer.is_draft and transfer.files is not None:
            self._change(transfer.id, final_file_sizes={file.name: file.size for file in transfer.files})
        self._change(
            transfer.id,
            status=transfer.status,
            subject=transfer.subject,
            recipient_count=len(transfer.recipients) if recipients is None else recipients,
            recipients=_recipients(transfer, self._naming),
            picked_up_count=transfer.picked_up_count,
            sent_at=parse_event_timestamp(transfer.sent_at),
            expires_at=parse_event_timestamp(transfer.expires_at),
        )
        self.set_current(transfer.id)

    @_never_raises
    def record_file(self, transfer_id: str, name: str, size: int, sha256: str) -> None:
        """Record that a file of this task is attached."""
        files, untrusted_files = self._files_of(transfer_id)
        self._change(
            transfer_id,
            files=files | {name: {"size": size, "sha256": sha256}},
            untrusted_files=untrusted_files - {name},
        )

    @_never_raises
    def record_file_removed(self, transfer_id: str, name: str) -> None:
        """Record that a file was removed from the draft."""
        files, untrusted_files = self._files_of(transfer_id)
        self._change(
            transfer_id,
            files={each: file for each, file in files.items() if each != name},
            untrusted_files=untrusted_files | {name},
        )

    @_never_raises
    def record_send(self, transfer_id: str, *, in_doubt: bool) -> None:
        """Record that a send begins, before it does: its process may be killed. Or record that it was not applied."""
        self._change(transfer_id, status=IN_DOUBT if in_doubt else DRAFT)
        if in_doubt:
            self._flush()

    @_never_raises
    def record_draft_removed(self, transfer_id: str) -> None:
        """Record that the draft was discarded."""
        update = self._updates.get(transfer_id)
        self._change(transfer_id, status=REHEARSED if update and update.status == REHEARSED else DISCARDED)

    @_never_raises
    def record_rehearsal(self, transfer_id: str) -> None:
        """Record that the draft is not sent, as its connection rehearses."""
        self._change(transfer_id, status=REHEARSED)

    @_never_raises
    def record_error(self, error: BaseException) -> None:
        """Record the error of the task's try. Errors of this package contain no secrets."""
        if self._current:
            self._change(self._current, error=redacted_summary(error))
        elif self._subject is not None:
            assert self._task is not None
            at = format_timestamp(self._clock())
            self._submit(DeliveryFailure(task=self._task, subject=self._subject, error=redacted_summary(error), at=at))

    def _files_of(self, transfer_id: str) -> tuple[dict[str, dict[str, Any]], frozenset[str]]:
        update = self._updates.get(transfer_id)
        return (dict(update.files), update.untrusted_files) if update else ({}, frozenset())

    def _change(self, transfer_id: str, **known: Any) -> None:
        assert self._task is not None
        now = format_timestamp(self._clock())
        update = self._updates.get(transfer_id) or DeliveryUpdate(
            account=self._account(),
            transfer_id=transfer_id,
            task=self._task,
            started_at=now,
            at=now,
            error=None if self._task.owns_delivery else msgspec.UNSET,
        )
        if not self._task.owns_delivery:
            known.pop("error", None)
        self._updates[transfer_id] = update = msgspec.structs.replace(update, at=now, **known)
        self._submit(update)


def _recipients(transfer: Transfer, naming: RecipientNaming) -> tuple[RecipientPickup, ...]:
    """Return the recipients of a sent transfer: nobody can pick up a draft, and its recipients may never be sent to."""
    if transfer.is_draft or naming.is_none:
        return ()
    return tuple(
        RecipientPickup(*naming.stored(each.email, each.name or ""), parse_event_timestamp(each.picked_up_at))
        for each in transfer.recipients
    )


def redacted_summary(error: BaseException) -> str:
    """Return an error as one line without secrets and email addresses, which the column must not have.

    Of an error that is not this package's, only the first line: others may have anything.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    own = error.__context__ if isinstance(error, AirflowFailException) else error  # which is raised in its place
    is_own = isinstance(own, OutboundTransferError)
    line = " ".join(" ".join(lines).split()) if is_own else lines[0]
    # Masked as in the log: an error may quote an object store or a database.
    return ADDRESS.sub("***", _ADDRESS.sub("***", str(redact(line))))[:MAX_ERROR]
