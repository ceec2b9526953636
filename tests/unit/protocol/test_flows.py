"""The draft holds just the source's bytes, or the flow says why not (docs/guarantees.md#sent-as-intended)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from outbound_transfer.client.drivers import drive
from outbound_transfer.protocol import errors
from outbound_transfer.protocol.endpoints import AttachResult
from outbound_transfer.protocol.flows import (
    DiscardOutcome,
    attach,
    create_draft,
    discard_draft,
    find_transfer,
)
from outbound_transfer.protocol.messages import Call, Operation, Upload
from outbound_transfer.protocol.models import File, Recipient, Transfer, build_new_transfer

UPLOAD = Upload("a.txt", 3, lambda: iter([b"abc"]))


def check_unchanged() -> None:
    """The source is what it was."""


def changed() -> None:
    raise errors.SourceChanged("it grew")


class Draft:
    """A draft's files, by name, with the size that is stored; ``lies`` about names or sizes if told to."""

    def __init__(
        self,
        stored: int | None = None,
        *,
        store_as: tuple[str, int] | None = None,
        after_in_doubt_attempt: bool = False,
    ) -> None:
        self.files = {} if stored is None else {"a.txt": File("old", "a.txt", stored)}
        self.after_in_doubt_attempt = after_in_doubt_attempt
        self.store_as = store_as
        self.calls: list[str] = []

    def __call__(self, call: Call[Any]) -> Any:
        self.calls.append(call.operation.value)
        if call.operation is Operation.REMOVE:
            file_id = call.path.rpartition("/")[2]
            self.files = {name: file for name, file in self.files.items() if file.id != file_id}
            return None
        upload = call.upload
        assert upload
        name, size = self.store_as or (upload.name, upload.size)
        created = upload.name not in self.files
        return AttachResult(
            self.files.setdefault(upload.name, File("new", name, size)), created, self.after_in_doubt_attempt
        )


def run(draft: Draft, **options: Any) -> File | Exception:
    try:
        return drive(attach("t", UPLOAD, **{"check_unchanged": check_unchanged, **options}), draft)
    except errors.OutboundTransferError as error:
        return error


def test_a_new_file_is_attached() -> None:
    draft = Draft()
    assert run(draft) == File("new", "a.txt", 3)
    assert draft.calls == ["attach"]


@pytest.mark.parametrize("stored", [2, 3], ids=["another size", "the same size"])
def test_a_foreign_file_stays_and_raises_a_conflict(stored: int) -> None:
    draft = Draft(stored)
    assert isinstance(run(draft), errors.FileConflict)
    assert draft.files["a.txt"].id == "old"


def test_an_upload_of_an_earlier_attempt_is_ours() -> None:
    assert run(Draft(3, after_in_doubt_attempt=True)) == File("old", "a.txt", 3)


def test_another_size_after_an_attempt_in_doubt_is_not_ours() -> None:
    assert isinstance(run(Draft(2, after_in_doubt_attempt=True)), errors.FileConflict)


def test_a_file_under_another_name_is_never_taken_for_ours() -> None:
    draft = Draft(after_in_doubt_attempt=True)
    draft.files["a.txt"] = File("old", "A.TXT", 3)
    assert isinstance(run(draft), errors.FileConflict)
    assert draft.calls == ["attach"], "it may be another file of the delivery, where a service folds case"


def test_a_source_that_changed_leaves_no_record() -> None:
    draft = Draft()
    error = run(draft, check_unchanged=changed)
    assert isinstance(error, errors.SourceChanged)
    assert str(error) == "it grew"
    assert draft.files == {}


@pytest.mark.parametrize("store_as", [("b.txt", 3), ("a.txt", 2), ("a.txt", 4), ("A.TXT", 3)])
def test_what_is_stored_otherwise_leaves_no_record(store_as: tuple[str, int]) -> None:
    draft = Draft(store_as=store_as)
    error = run(draft)
    assert isinstance(error, errors.SourceChanged)
    assert repr(store_as[0]) in str(error)
    assert draft.files == {}


@pytest.mark.parametrize("failing", ["attach", "remove"])
def test_an_error_of_any_of_its_calls_ends_it(failing: str) -> None:
    draft = Draft()

    def perform(call: Call[Any]) -> Any:
        if call.operation.value == failing:
            raise errors.NoCredit(403)
        return draft(call)

    with pytest.raises(errors.NoCredit):
        drive(attach("t", UPLOAD, check_unchanged=changed), perform)


# ------------------------------------------------------------------------------------------------------------- create

NEW = build_new_transfer(subject="Report", recipients=["ann@example.com"])
CREATED = Transfer("t", "draft", "Report", recipients=(Recipient("ann@example.com", "ann"),))


@pytest.mark.parametrize(
    "change",
    [{"subject": "Other"}, {"recipients": ()}, {"recipients": (Recipient("bob@example.com"),)}, {"status": "pending"}],
    ids=str,
)
def test_a_create_that_returns_another_transfer_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(errors.WrongTransfer):
        drive(create_draft(NEW), scripted(structs.replace(CREATED, **change)))


# ------------------------------------------------------------------------------------------------ discard and find

OUTCOMES: dict[str, tuple[Any, Any]] = {
    "done": (None, DiscardOutcome.REMOVED),
    "gone": (errors.NotFound(404), DiscardOutcome.NOT_FOUND),
    "sent": (errors.InvalidState(409), DiscardOutcome.SENT),
    "forbidden": (errors.ApiNotPermitted(403), errors.ApiNotPermitted),
    "broken": (errors.ConnectionLost(), errors.ConnectionLost),
}


def scripted(outcome: Any) -> Any:
    def perform(call: Call[Any]) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return perform


@pytest.mark.parametrize("name", OUTCOMES)
def test_discarding_a_draft(name: str) -> None:
    answer, expected = OUTCOMES[name]
    if isinstance(expected, DiscardOutcome):
        assert drive(discard_draft("t"), scripted(answer)) is expected
    else:
        with pytest.raises(expected):
            drive(discard_draft("t"), scripted(answer))


def test_finding_a_transfer() -> None:
    transfer = Transfer("t", "draft", "S")
    assert drive(find_transfer("t"), scripted(transfer)) is transfer
    assert drive(find_transfer("t"), scripted(errors.NotFound(404))) is None
    with pytest.raises(errors.InvalidApiKey):
        drive(find_transfer("t"), scripted(errors.InvalidApiKey(401)))
