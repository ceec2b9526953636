"""Conversations of several calls, each written once and driven by :mod:`outbound_transfer.client.drive`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, Generic, NamedTuple, TypeVar

from outbound_transfer.protocol import calls
from outbound_transfer.protocol.errors import (
    CallError,
    FileConflict,
    InvalidState,
    MalformedAnswer,
    NotFound,
    SourceChanged,
    WrongTransfer,
)
from outbound_transfer.protocol.exchange import Answer, Call, Flow, Settlement, Upload, result_of
from outbound_transfer.protocol.identity import Identity, holds_just, identity_of
from outbound_transfer.protocol.models import File, NewTransfer, Transfer, TransferPage, instant_of
from outbound_transfer.protocol.repeats import EFFECTS, Effect

T = TypeVar("T")

#: Pages of a listing that may end; one of this many transfers does not.
_PAGES: Final = 10_000

#: Uploads of earlier versions of a file that may land one after the other, before nobody knows what goes on.
_STALE_FILES: Final = 3


class Tries(Generic[T]):
    """One call, tried until it is answered: ``tries()`` is the flow of the next try, over bare answers.

    Remembers whether an earlier try may have taken effect, and then asks before it repeats what must not happen
    twice. So no caller of a call can send twice, whatever fails in between.
    """

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self.unclear = False
        self._unclear_tries = 0
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
            return (yield from self._counted())
        except InvalidState:
            # One code for two causes (POST .../send, rule 2): only a read tells "already sent" from "no files".
            if (
                self.call.settle is None
                or (landed := (yield from self._landed(self.call.settle, refused=True))) is None
            ):
                raise
            return landed
        except NotFound:
            if self.unclear and EFFECTS[self.call.operation] is Effect.GONE:
                return None  # type: ignore[return-value]  # these calls have no result
            raise

    def _counted(self) -> Flow[T]:
        try:
            return (yield from _answered(self.call, self.unclear))
        except CallError as error:
            self._unclear_tries += error.unclear
            error.is_last = self._unclear_tries == self.call.unclear_tries
            raise

    def _landed(self, settle: Settlement[T], *, refused: bool = False) -> Flow[T | None]:
        self.unclear = True  # until the question is answered
        answer = yield from _answered(settle.question)
        landed = settle.landed(answer)
        if landed is None and refused and settle.contradicts(answer):
            raise MalformedAnswer(f"{self.call.operation.value}: what is read does not go with the refusal")
        self.unclear = False
        return landed


def _answered(call: Call[T], after_unclear: bool = False) -> Flow[T]:
    answer: Answer = yield call
    return result_of(call, replace(answer, after_unclear=after_unclear))


def create_draft(new: NewTransfer, drafts: int) -> Flow[Transfer]:
    """Create a draft of just this.

    :param drafts: as of :func:`.calls.create_transfer`.
    :raises WrongTransfer: the answer is of something else than what was asked for.
    """
    transfer: Transfer = yield calls.create_transfer(new, drafts=drafts)
    if not transfer.is_draft or transfer.files or identity_of(transfer) != identity_of(new):
        raise WrongTransfer(
            f"The answer to create is of {transfer.id} ({transfer.status}), which is not what was asked for"
        )
    return transfer


class AttachedFile(NamedTuple):
    """A file that a draft holds for sure.

    :ivar may_land_again: some try of the upload may have taken effect and may still land.
    """

    file: File
    may_land_again: bool


def attach(
    transfer_id: str,
    upload: Upload,
    *,
    unchanged: Callable[[], None],
    begun_before: bool = False,
    earlier_sizes: Collection[int] = (),
) -> Flow[AttachedFile]:
    """Attach one file to a draft so that the draft holds just its bytes.

    :param begun_before: an earlier process has begun this very upload, and it may land at any time: a file of this name
        and size that the draft comes to hold is it.
    :param earlier_sizes: of other versions of the file that this delivery has begun to upload, and which may land too:
        what the service had by the name before is stale where it has such a size.
    :param unchanged: raises :class:`SourceChanged` where the source is no longer what ``upload`` describes.
    :raises FileConflict: the draft holds another file, which this delivery did not attach.
    :raises SourceChanged: after the file's record was removed from the draft.
    """
    attached: calls.Attached = yield calls.attach_file(transfer_id, upload)
    for _ in range(_STALE_FILES):
        if attached.is_new or attached.file.name != upload.name or attached.file.size not in earlier_sizes:
            break
        # The service has kept an earlier version and answered 200 (POST .../files); of one size, nobody can tell which.
        yield calls.remove_file(transfer_id, attached.file.id)
        attached = yield calls.attach_file(transfer_id, upload)
    file = attached.file
    is_surely_ours = (attached.after_unclear or begun_before) and file.size not in earlier_sizes
    is_ours = attached.is_new or (is_surely_ours and _is_of(file, upload))
    yield from _verify(transfer_id, file, upload, unchanged, is_ours=is_ours)
    return AttachedFile(file, may_land_again=attached.after_unclear)


def _is_of(file: File, upload: Upload) -> bool:
    return (file.name, file.size) == (upload.name, upload.size)


def _verify(
    transfer_id: str, file: File, upload: Upload, unchanged: Callable[[], None], *, is_ours: bool
) -> Flow[None]:
    if not is_ours:
        raise FileConflict(
            f"{upload.name!r}: the draft {transfer_id} already holds {file.name!r} ({file.size} bytes), which this "
            "delivery did not attach. Remove it, or deliver in a draft of its own."
        )
    try:
        unchanged()
        if not _is_of(file, upload):
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


def find_sent(wanted: Identity, files: Mapping[str, int], since: float) -> Flow[Transfer | None]:
    """A sent transfer with just this subject, these recipients and these files; None where the key has sent none.

    Pages through ``status=all``, in which no row is skipped (GET /v1/transfers). A row that cannot be read, or does not
    say when it was sent, may be it.

    :param files: sizes in bytes, by name.
    :param since: seconds since the epoch; older ones are not looked at.
    :raises MalformedAnswer: the listing does not end, so it says nothing of what is not in it.
    """
    cursor: str | None = None
    for _ in range(_PAGES):
        page: TransferPage = yield calls.list_transfers(cursor=cursor)
        alike = [one.id for one in page.data if identity_of(one) == wanted and _sent(one, since) >= since]
        for transfer_id in (*alike, *filter(None, (row.id for row in page.unreadable))):
            # A listing does not have the files.
            found: Transfer | None = yield from find_transfer(transfer_id)
            by_listing = next((one for one in page.data if one.id == transfer_id), None)
            if found is None or not found.files:
                if by_listing:  # it was sent, and nobody says with what: it may be it
                    return by_listing
            elif identity_of(found) == wanted and holds_just(found, files):
                return found
        # By the newest of the page: a single absurd time hides nothing.
        is_older = bool(page.data) and max(_sent(one, since) for one in page.data) < since
        if is_older or page.next_cursor is None:
            return None
        if page.next_cursor == cursor:
            break
        cursor = page.next_cursor
    raise MalformedAnswer("list: the listing of transfers does not end, so it cannot be told what was sent")


def _sent(transfer: Transfer, default: float) -> float:
    sent = instant_of(transfer.sent_at)
    return default if sent is None else sent
