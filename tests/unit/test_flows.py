"""The draft holds just the source's bytes, or the flow says why not (design: promise 5.2)."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.client.drive import drive
from outbound_transfer.protocol import errors
from outbound_transfer.protocol.calls import Attached
from outbound_transfer.protocol.exchange import Call, Operation, Upload
from outbound_transfer.protocol.flows import attach, discard_draft, find_transfer
from outbound_transfer.protocol.models import File, Transfer

UPLOAD = Upload("a.txt", 3, lambda: iter([b"abc"]))


def unchanged() -> None:
    """The source is what it was."""


def changed() -> None:
    raise errors.SourceChanged("it grew")


class Draft:
    """A draft's files, by name, with the size that is stored; ``lies`` about names or sizes where asked to."""

    def __init__(self, stored: int | None = None, *, store_as: tuple[str, int] | None = None) -> None:
        self.files = {} if stored is None else {"a.txt": File("old", "a.txt", stored)}
        self.store_as = store_as
        self.asked: list[str] = []

    def __call__(self, call: Call[Any]) -> Any:
        self.asked.append(call.operation.value)
        if call.operation is Operation.REMOVE:
            file_id = call.path.rpartition("/")[2]
            self.files = {name: file for name, file in self.files.items() if file.id != file_id}
            return None
        upload = call.upload
        assert upload
        name, size = self.store_as or (upload.name, upload.size)
        created = upload.name not in self.files
        return Attached(self.files.setdefault(upload.name, File("new", name, size)), ours=created)


def run(draft: Draft, **options: Any) -> File | Exception:
    try:
        return drive(attach("t", UPLOAD, **{"unchanged": unchanged, **options}), draft)
    except errors.OutboundTransferError as error:
        return error


def test_a_new_file_is_attached() -> None:
    draft = Draft()
    assert run(draft) == File("new", "a.txt", 3)
    assert draft.asked == ["attach"]


def test_a_stale_file_of_another_size_is_replaced() -> None:
    draft = Draft(stored=2)
    assert run(draft) == File("new", "a.txt", 3)
    assert draft.asked == ["attach", "remove", "attach"]


def test_a_file_of_the_same_size_that_is_not_ours_is_left_and_told() -> None:
    draft = Draft(stored=3)
    assert isinstance(run(draft), errors.FileConflict)
    assert draft.files["a.txt"].id == "old"


@pytest.mark.parametrize("stored", [None, 2])
def test_a_source_that_changed_leaves_no_record(stored: int | None) -> None:
    draft = Draft(stored)
    error = run(draft, unchanged=changed)
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


@pytest.mark.parametrize(("failing", "stored"), [("attach", None), ("attach", 2), ("remove", 2)])
def test_an_error_of_any_of_its_calls_ends_it(failing: str, stored: int | None) -> None:
    draft = Draft(stored)

    def perform(call: Call[Any]) -> Any:
        if call.operation.value == failing:
            raise errors.NoCredit(403)
        return draft(call)

    with pytest.raises(errors.NoCredit):
        drive(attach("t", UPLOAD, unchanged=unchanged), perform)


# ------------------------------------------------------------------------------------------------ discard and find

OUTCOMES: dict[str, tuple[Any, Any]] = {
    "done": (None, True),
    "gone": (errors.NotFound(404), True),
    "sent": (errors.InvalidState(409), False),
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
    if isinstance(expected, bool):
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
