"""Conversations of several calls, each written once and driven by :mod:`outbound_transfer.client.drive`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from outbound_transfer.protocol import calls
from outbound_transfer.protocol.errors import CallError, FileConflict, InvalidState, NotFound, SourceChanged
from outbound_transfer.protocol.exchange import Answer, Call, Flow, Settlement, Upload, result_of
from outbound_transfer.protocol.models import File, Transfer
from outbound_transfer.protocol.repeats import EFFECTS, Effect

T = TypeVar("T")


class Tries(Generic[T]):
    """One call, tried until it is answered: ``tries()`` is the flow of the next try, over bare answers.

    Remembers whether an earlier try may have taken effect, and then asks before it repeats what must not happen
    twice. So no caller of a call can send twice, whatever fails in between.
    """

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self.unclear = False
        #: Some try was unclear. It may be on its way still and land behind the read that found no effect of it.
        self.in_doubt = False

    def __call__(self) -> Flow[T]:
        try:
            return (yield from self._try())
        except CallError as error:
            self.unclear = error.unclear = self.unclear or error.unclear
            self.in_doubt = self.in_doubt or self.unclear
            if self.in_doubt and self.call.settle:
                error.doubt = self.call.settle.doubt
            raise

    def _try(self) -> Flow[T]:
        if self.unclear and self.call.settle and (landed := (yield from self._landed(self.call.settle))) is not None:
            return landed
        try:
            return (yield from _answered(self.call, self.unclear))
        except InvalidState:
            # One code for two causes (POST .../send, rule 2): only a read tells "already sent" from "no files".
            if self.call.settle is None or (landed := (yield from self._landed(self.call.settle))) is None:
                raise
            return landed
        except NotFound:
            if self.unclear and EFFECTS[self.call.operation] is Effect.GONE:
                return None  # type: ignore[return-value]  # these calls have no result
            raise

    def _landed(self, settle: Settlement[T]) -> Flow[T | None]:
        self.unclear = True  # until the question is answered
        landed = settle.landed((yield from _answered(settle.question)))
        self.unclear = False
        return landed


def _answered(call: Call[T], after_unclear: bool = False) -> Flow[T]:
    answer: Answer = yield call
    return result_of(call, replace(answer, after_unclear=after_unclear))


def attach(
    transfer_id: str, upload: Upload, *, unchanged: Callable[[], None], begun_before: bool = False
) -> Flow[File]:
    """Attach one file to a draft so that the draft holds just its bytes.

    :param begun_before: an earlier process has begun this very upload, and it may land at any time: a file of this name
        and size that the draft comes to hold is it.
    :param unchanged: raises :class:`SourceChanged` where the source is no longer what ``upload`` describes.
    :raises FileConflict: the draft holds another file of the same name and size.
    :raises SourceChanged: after the file's record was removed from the draft.
    """
    attached: calls.Attached = yield calls.attach_file(transfer_id, upload)
    if attached.file.size != upload.size:
        # The service kept an earlier file of this name and answered 200 (POST .../files): it is stale.
        yield calls.remove_file(transfer_id, attached.file.id)
        attached = yield calls.attach_file(transfer_id, upload)
    yield from _verify(transfer_id, attached._replace(ours=attached.ours or begun_before), upload, unchanged)
    return attached.file


def _verify(transfer_id: str, attached: calls.Attached, upload: Upload, unchanged: Callable[[], None]) -> Flow[None]:
    file, ours = attached
    if not ours:
        raise FileConflict(
            f"{upload.name!r}: the draft {transfer_id} already holds a file of this name that this delivery did not "
            "attach. Remove it, or deliver in a draft of its own."
        )
    try:
        unchanged()
        if (file.name, file.size) != (upload.name, upload.size):
            raise SourceChanged(
                f"{upload.name!r} of {upload.size} bytes is not what the service stored: "
                f"{file.name!r} of {file.size} bytes"
            )
    except SourceChanged:
        # The service stores just the bytes declared and reports success, so the record is wrong: it must go.
        yield calls.remove_file(transfer_id, file.id)
        raise


def discard_draft(transfer_id: str) -> Flow[bool]:
    """Remove a draft; a sent transfer is left alone. True where the draft is gone, False where it was sent."""
    try:
        yield calls.discard_transfer(transfer_id)
    except InvalidState:
        return False
    except NotFound:
        return True
    return True


def find_transfer(transfer_id: str) -> Flow[Transfer | None]:
    """The transfer, or None where the service knows it no more (a discarded draft)."""
    try:
        transfer: Transfer = yield calls.get_transfer(transfer_id)
    except NotFound:
        return None
    return transfer
