"""The fault matrix in small: every single fault, some pairs, and tests that the matrix finds what is broken.

All pairs: ``python -m resilience.fault_matrix``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer.operators.draft import (
    AttachFilesOperator,
    CreateTransferOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.operators.transfer import DeliverFilesOperator
from resilience.fault_matrix import matrix
from resilience.fault_matrix.matrix import (
    BY_NAME,
    KINDS,
    PAIR_KINDS,
    SEND,
    FaultedRun,
    FaultKind,
    Harness,
    Planned,
    Schedule,
    following_schedules,
)
from resilience.fault_matrix.memories import MemorySchedule, memory_schedules, run_memory_schedule
from resilience.fault_matrix.mutants import ForgetfulDelivery
from resilience.fault_matrix.uploads import UploadSchedule, run_upload_schedule, upload_schedules
from support.calls import GET, after, intercepted
from support.oracle import says_sent
from support.tasks import FakeTaskInstance, SimulatedClock

pytestmark = pytest.mark.slow

SEED = 20


#: After these the client cannot know whether its send took effect, and it did.
UNCLEAR = ("500 after", "reset after", "truncated json")
#: These end the task at once, so also the question whether the send took effect.
REFUSALS = ("400", "401", "403", "404", "409 invalid_state")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with Harness(tmp_path_factory.mktemp("files")) as harness:
        yield harness


def check(harness: Harness, schedule: Schedule, **options: Any) -> matrix.Outcome:
    outcome = harness.run(schedule, **options)
    assert not outcome.violations, f"{outcome.name}: {outcome.violations}"
    return outcome


def test_no_fault(harness: Harness) -> None:
    assert check(harness, ()).result == "sent"


@pytest.mark.parametrize("deferrable", [False, True], ids=["holding", "deferring"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_fault_at_every_call(harness: Harness, kind: FaultKind, deferrable: bool) -> None:
    schedules = list(following_schedules(harness, (), (kind,)))
    assert len(schedules) == (1 if kind.needs == "sent transfer" else 5)
    for schedule in schedules:
        assert check(harness, schedule, deferrable=deferrable).leaked <= 1


@pytest.mark.parametrize("given", ["contents", "archive", "query"])
def test_other_inputs_keep_the_promises_under_some_faults(tmp_path: Path, given: str) -> None:
    chance = random.Random(SEED)
    with Harness(tmp_path, given) as harness:
        for schedule in [(), *chance.sample(list(following_schedules(harness, (), PAIR_KINDS)), 12)]:
            check(harness, schedule)


@pytest.mark.parametrize("number", range(12))
def test_some_pairs_of_faults(harness: Harness, number: int) -> None:
    chance = random.Random(SEED + number)
    first = (
        Planned(chance.choice([kind for kind in PAIR_KINDS if kind.passes and not kind.needs]), chance.randrange(5)),
    )
    pairs = list(following_schedules(harness, first, PAIR_KINDS))
    for pair in chance.sample(pairs, 5):
        assert check(harness, pair).leaked <= 2


@pytest.mark.parametrize("unclear", UNCLEAR)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_question_whether_the_send_took_effect(harness: Harness, unclear: str, refusal: str) -> None:
    check(harness, (Planned(BY_NAME[unclear], SEND), Planned(BY_NAME[refusal], 0)))


@pytest.mark.parametrize("refusal", ["400", "401", "403", "404", "413"])
def test_a_send_that_lands_behind_the_question_is_told_when_its_repeat_is_refused(
    harness: Harness, refusal: str
) -> None:
    """The first send is late, a read finds a draft, the second send is refused; then the first one lands."""
    run = FaultedRun(harness.sandbox(), harness.files, late=True)
    run.time = SimulatedClock(run.sandbox)  # which lets go of nothing: the send is held until the task has failed
    run.plan({"kind": "hold", "path": "*/send"}, {**BY_NAME[refusal].fault, "path": "*/send"})
    run.deliver()

    assert run.error
    outcome = run.judged(must_succeed=False)

    assert not outcome.violations, outcome.violations
    assert outcome.result == "failed, but sent"


@pytest.mark.parametrize("refusal", ["401", "403", "404", "409 invalid_state", "503"])
@pytest.mark.parametrize("operator", [DeliverFilesOperator, SendTransferOperator], ids=["deliver", "send"])
def test_a_clear_that_cannot_look_says_that_it_was_sent(harness: Harness, operator: type, refusal: str) -> None:
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    run.deliver()
    ti, sent = run.ti, run.result["id"]
    if operator is SendTransferOperator:
        ti = FakeTaskInstance(lambda: SendTransferOperator(task_id="send", transfer_id=sent), run.time, task_id="send")
        assert run.result_of(ti)[0]["id"] == sent
    run.plan(*[{**BY_NAME[refusal].fault, "method": "*"}] * 100)
    ti.clear()

    assert says_sent(run.result_of(ti)[1], sent)


class Rewriting(SimulatedClock):
    """Time in which another program rewrites a file while the client waits for its next try."""

    def __init__(self, sandbox: Any, path: Path, content: bytes) -> None:
        super().__init__(sandbox)
        self.path, self.content = path, content

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.path.write_bytes(self.content)


class Dying(SimulatedClock):
    """Time in which the first try dies as soon as its client begins to wait."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if len(self.waits) == 1:
            raise RuntimeError("the first try has died")


def deliver_past_a_late_upload(harness: Harness, content: bytes | None, *, clear: bool = False) -> matrix.Outcome:
    """The first try's upload lands after the second try has looked at the draft.

    :param content: what the file holds by then; None: it has not changed, and the first try has just died.
    """
    run = FaultedRun(harness.sandbox(), harness.files, late=True)
    # The largest file is attached first, then the one that is rewritten.
    run.plan({"kind": "hold", "method": "POST", "path": "*/files", "skip": 1})
    run.time = Dying(run.sandbox) if content is None else Rewriting(run.sandbox, harness.files[0], content)
    ti = run.task()
    try:
        with after(GET, *[lambda: run.settle() if ti.try_number == 2 else None] * 20):
            run.deliver(ti)
        return run.judged(must_succeed=False, clear=clear)
    finally:
        harness.restore_files()


SAME_SIZE, OTHER_SIZE = b"Z" * matrix.SIZES["a.csv"], b"Z" * 77


@pytest.mark.parametrize("content", [SAME_SIZE, OTHER_SIZE], ids=["=", "!="])
def test_an_upload_that_lands_late_is_not_taken_for_the_file(harness: Harness, content: bytes) -> None:
    outcome = deliver_past_a_late_upload(harness, content)
    assert not outcome.violations
    assert outcome.result == "sent"


def test_an_upload_that_lands_late_is_taken_for_the_file_where_nothing_has_changed(harness: Harness) -> None:
    outcome = deliver_past_a_late_upload(harness, None)
    assert not outcome.violations
    assert outcome.result == "sent"


def test_a_clear_does_not_send_an_upload_that_landed_late(harness: Harness) -> None:
    assert not deliver_past_a_late_upload(harness, SAME_SIZE, clear=True).violations


class RestoredService:
    """A service that was restored from a backup, and has given an id again: that of ours, to a draft of somebody else.

    :ivar ours: the id; "" while it is still ours.
    """

    def __init__(self, run: FaultedRun) -> None:
        self.run, self.ours = run, ""
        people = {"subject": "Theirs", "recipients": ["eve@example.com"]}
        self.theirs = str(self._result_of("theirs", lambda: CreateTransferOperator(task_id="theirs", **people)))
        file = {"name": "theirs.csv", "content": b"1"}
        self._result_of("add", lambda: AttachFilesOperator(task_id="add", transfer_id=self.theirs, files=[file]))

    def _result_of(self, task_id: str, make: Callable[[], Any]) -> Any:
        return self.run.result_of(FakeTaskInstance(make, self.run.time, task_id=task_id, run_id="theirs"))[0]

    def handle(self, request: httpx.Request, make: Callable[[], httpx.Response]) -> httpx.Response:
        if not self.ours:
            return make()
        request.url = request.url.copy_with(path=request.url.path.replace(self.ours, self.theirs))
        response = make()
        body = response.read().replace(self.theirs.encode(), self.ours.encode())
        response.close()
        return httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(body))

    def check(self) -> None:
        """Check that their draft is as it was."""
        theirs = self.run.sandbox.transfer(self.theirs)
        assert (theirs["status"], [file["name"] for file in theirs["files"]]) == ("draft", ["theirs.csv"])


@pytest.mark.parametrize("is_at_wait", [False, True], ids=["between tries", "at a wait"])
def test_a_draft_whose_id_is_anothers_now_is_left_alone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, is_at_wait: bool
) -> None:
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    service = RestoredService(run)

    def restore(seconds: float = 0) -> None:
        service.ours = service.ours or ti.xcoms["transfer_id"]
        SimulatedClock.sleep(run.time, seconds)
        run.sandbox.clear_faults()

    ti = run.task()
    # What may have been sent is refused where it is not shown any more.
    run.plan(*[{**BY_NAME["503"].fault, "path": "*/send" if is_at_wait else "*/files"}] * 30)
    if is_at_wait:
        monkeypatch.setattr(run.time, "sleep", restore)
    else:
        ti.before_retry = restore
    with intercepted(service.handle):
        run.deliver(ti)

    service.check()
    assert run.judge.billed() == ([] if is_at_wait else [run.result["id"]])


@pytest.mark.parametrize("name", ["attach", "send", "discard"])
def test_a_shared_draft_whose_id_is_anothers_now_is_left_alone(harness: Harness, name: str) -> None:
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    service = RestoredService(run)
    create = FakeTaskInstance(
        lambda: CreateTransferOperator(task_id="create", **matrix.DELIVERY), run.time, task_id="create"
    )
    service.ours = draft = str(run.result_of(create)[0])
    made: dict[str, Callable[[], Any]] = {
        "attach": lambda: AttachFilesOperator(
            task_id=name, transfer_id=draft, files=[{"name": "a.csv", "content": b"1"}]
        ),
        "send": lambda: SendTransferOperator(task_id=name, transfer_id=draft),
        "discard": lambda: DiscardTransferOperator(task_id=name, transfer_id=draft),
    }
    with intercepted(service.handle):
        _, error = run.result_of(FakeTaskInstance(made[name], run.time, task_id=name, upstream={"create": create}))

    assert draft in str(error)
    service.check()


# Faults of uploads that run at once, and of the memory.


@pytest.mark.nightly
@pytest.mark.parametrize("schedule", random.Random(7).sample(upload_schedules(), 40), ids=str)
def test_no_fault_of_an_upload_breaks_a_promise(harness: Harness, schedule: UploadSchedule) -> None:
    assert run_upload_schedule(harness, schedule).violations == ()


@pytest.mark.nightly
@pytest.mark.parametrize("schedule", random.Random(13).sample(memory_schedules(), 60), ids=str)
def test_no_memory_that_fails_breaks_a_promise(harness: Harness, schedule: MemorySchedule) -> None:
    assert run_memory_schedule(harness, schedule).violations == ()


# The matrix can fail.


def test_the_matrix_finds_a_second_send_and_other_bytes(harness: Harness) -> None:
    run = FaultedRun(harness.sandbox(), harness.files, late=False)
    contents = iter([None, b"other"])
    ti = FakeTaskInstance(lambda: ForgetfulDelivery(run.sandbox, run.files, matrix.DELIVERY, next(contents)), run.time)
    run.deliver(ti)
    ti.clear()
    run.deliver(ti)

    violations = run.judged(must_succeed=True).violations
    assert any(violation.startswith("billed 2 times") for violation in violations)
    assert any(" and not " in violation for violation in violations)


def test_the_matrix_finds_a_fault_that_is_not_met(harness: Harness) -> None:
    assert harness.run((Planned(BY_NAME["500"], 99),)).violations == ("not met: error",)
