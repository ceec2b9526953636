"""What one task knows of its deliveries, put together as its steps go by."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime, timezone
from functools import wraps
from typing import Any, Final, TypeVar

import msgspec

from outbound_transfer.protocol.models import Transfer
from outbound_transfer.warehouse.deliveries import MAX_ERROR, Note, Task
from outbound_transfer.warehouse.rows import instant, occurred_at
from outbound_transfer.warehouse.transfers import REMOVED

log = logging.getLogger(__name__)

#: An address, as far as it could be told from the words around it.
_ADDRESS: Final = re.compile(r"(\"[^\"]*\"|[^\s,;<>\"']+)@[^\s,;<>\"']+")


Step = TypeVar("Step", bound=Callable[..., None])


def _harmless(step: Step) -> Step:
    """A step that does nothing where no ledger is kept, and whose failure is a line in the log."""

    @wraps(step)
    def taken(self: Journal, *args: Any, **kwargs: Any) -> None:
        try:
            if self.is_kept:
                step(self, *args, **kwargs)
        except Exception as error:
            log.warning("A step is not in the delivery ledger: %s: %s", type(error).__name__, in_a_line(error))

    return taken  # type: ignore[return-value]


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Journal:
    """Takes down the steps of a task; each is one call, which never fails and waits for nothing.

    :param account: whose deliveries they are.
    :param task: which task it is; None where no ledger is kept, and nothing is taken down then.
    :param put: takes each :class:`Note`: all that is known of one delivery so far.
    """

    def __init__(
        self,
        account: str = "",
        task: Task | None = None,
        put: Callable[[Note], Any] = id,
        *,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._account, self._task, self._put, self._clock = account, task, put, clock
        self._notes: dict[str, Note] = {}
        self._current = ""

    @property
    def is_kept(self) -> bool:
        """Whether anything is taken down."""
        return self._task is not None

    @_harmless
    def about(self, transfer_id: str) -> None:
        """The task goes on with this delivery; whatever ends its try now is this delivery's error."""
        self._current = transfer_id

    @_harmless
    def saw(self, transfer: Transfer, *, recipients: int | None = None) -> None:
        """The service said how a transfer stands.

        :param recipients: how many, where ``transfer`` does not say.
        """
        if not transfer.is_draft and transfer.files is not None:
            self._change(transfer.id, listed={file.name: file.size for file in transfer.files})
        self._change(
            transfer.id,
            status=transfer.status,
            subject=transfer.subject,
            recipients=len(transfer.recipients) if recipients is None else recipients,
            collected=transfer.picked_up,
            sent_at=occurred_at(transfer.sent_at),
            expires_at=occurred_at(transfer.expires_at),
        )
        self.about(transfer.id)

    @_harmless
    def holds(self, transfer_id: str, name: str, size: int, sha256: str, *, sole: bool) -> None:
        """The draft holds a file of this task.

        :param sha256: "" where this task does not know it.
        :param sole: no other version of it was ever planned, so what another try wrote of it holds.
        """
        files, dropped = self._files_of(transfer_id)
        if not sha256 and not sole:
            dropped |= {name}
        self._change(transfer_id, files=files | {name: {"size": size, "sha256": sha256 or None}}, dropped=dropped)

    @_harmless
    def drops(self, transfer_id: str, name: str) -> None:
        """A file was removed from the draft."""
        files, dropped = self._files_of(transfer_id)
        self._change(
            transfer_id, files={each: file for each, file in files.items() if each != name}, dropped=dropped | {name}
        )

    @_harmless
    def removed(self, transfer_id: str) -> None:
        """The draft is gone."""
        self._change(transfer_id, status=REMOVED)

    @_harmless
    def failed(self, error: BaseException) -> None:
        """The task's try ends with an error, which the errors' own rules keep free of secrets."""
        if self._current:
            self._change(self._current, error=in_a_line(error))

    def _files_of(self, transfer_id: str) -> tuple[dict[str, dict[str, Any]], frozenset[str]]:
        note = self._notes.get(transfer_id)
        return (dict(note.files), note.dropped) if note else ({}, frozenset())

    def _change(self, transfer_id: str, **known: Any) -> None:
        assert self._task is not None
        now = instant(self._clock())
        note = self._notes.get(transfer_id) or Note(
            account=self._account,
            transfer_id=transfer_id,
            task=self._task,
            began=now,
            at=now,
            error=None if self._task.delivers else msgspec.UNSET,
        )
        if not self._task.delivers:
            known.pop("error", None)
        self._notes[transfer_id] = note = msgspec.structs.replace(note, at=now, **known)
        self._put(note)


def in_a_line(error: BaseException) -> str:
    """The first line of an error, without anybody's address: those are not the ledger's to keep."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined]  # it is there, and not in __all__

    said = str(error).strip() or type(error).__name__
    # What the log would mask is masked here too: an error may quote what an object store or a database said.
    return _ADDRESS.sub("***", str(redact(said.splitlines()[0])))[:MAX_ERROR]
