"""The fault matrix of a delivery of three files: which schedules there are, how one is run, and what judges it.

A schedule is one planned fault, or two of which the second waits for the first: it hits the calls that follow, those of
the recovery from the first included. How many calls follow is not guessed: a probe, a fault that waits for more calls
than any run makes, counts those that it lets pass.

A run is real but for time: the operator, its hook and its client, over a socket, against the sandbox; an hour of waits
takes milliseconds. What the sandbox has billed, sent and stored is the judge, never what the client believes. A task
that failed is cleared in the end and must deliver then, once in all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from resilience.inputs import INPUTS, operator_for, sql_connection
from resilience.oracle import DeliveryOracle
from support import memory
from support.calls import ProcessCrashed
from support.oracle import says_sent
from support.tasks import FakeTaskInstance, SimulatedClock
from support.timeouts import eventually

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"
DELIVERY = {"subject": "Report", "recipients": ["ann@example.com", "bob@example.com"]}
#: The last is longer than what the sandbox takes for a small body.
SIZES = {"a.csv": 1_000, "b.csv": 1, "c.csv": 100_000}
#: What the service may say in the place of an id: it has no such transfer.
UNKNOWN_ID = "other"
#: Tries of the task after the first, as a careful user would have them.
RETRIES = 2
#: Real seconds after which the client gives a late answer up. Only schedules with late answers use it.
TIMEOUT = 0.4
#: A sandbox is thrown away after so many schedules, before its logs get long.
SCHEDULES_PER_SANDBOX = 100
ENDLESS = 10**9
NOT_MET = "not met"


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault with its settings.

    :ivar passes: the service's guidance is to try again, so the task must succeed in spite of it.
    :ivar needs: the faults with the same need mean the same calls; "" means every call.
    :ivar late: it makes the client wait for its timeout.
    """

    name: str
    fault: Mapping[str, Any] = field(hash=False)
    passes: bool = True
    needs: str = ""
    late: bool = False


@dataclass(frozen=True)
class Planned:
    """A fault of a schedule, after ``skip`` calls that it means."""

    kind: FaultKind
    skip: int

    def __str__(self) -> str:
        return f"{self.kind.name} at call {self.skip}"

    def plan(self) -> dict[str, Any]:
        return {**self.kind.fault, "skip": self.skip}


Schedule: TypeAlias = tuple[Planned, ...]


def _error(name: str, status: int, *, passes: bool, **more: Any) -> FaultKind:
    return FaultKind(name, {"kind": "error", "status": status, **more}, passes)


def _refusals() -> Iterator[FaultKind]:
    for status in (400, 401, 403, 404, 411, 413):
        yield _error(f"{status}", status, passes=False)
    for code in ("invalid_state", "transfer_limit_reached", "recipient_limit_exceeded"):
        yield _error(f"409 {code}", 409, passes=False, code=code)
    # As if the very call had been repeated on the way. A repeated removal finds nothing: 404.
    repeated = {"kind": "error", "status": 409, "effect": "after", "method": "POST"}
    yield FaultKind("409 invalid_state after", repeated, passes=False, needs="POST")


def _passing_errors() -> Iterator[FaultKind]:
    waits = {"7": "7", "0": "0", "nonsense": "soon", "date": "Wed, 21 Oct 2037 07:28:00 GMT"}
    for name, retry_after in waits.items():
        # A date counts from the answer's own Date, which a planned error does not have: nonsense, too.
        yield _error(f"429 retry-after {name}", 429, passes=True, retry_after=retry_after)
    yield _error("429", 429, passes=True)
    yield _error("503 retry-after 120", 503, passes=True, retry_after="120")
    yield _error("502 of a proxy", 502, passes=True, code="")
    for status in (500, 502, 503, 504):
        yield _error(f"{status}", status, passes=True)
        yield _error(f"{status} after", status, passes=True, effect="after")


def _broken_connections() -> Iterator[FaultKind]:
    for effect in ("before", "after"):
        yield FaultKind(f"reset {effect}", {"kind": "reset", "effect": effect})
    for count in (1, 500):
        yield FaultKind(f"reset in request at {count}", {"kind": "reset_in_request", "after_bytes": count})
    for count in (0, 10):
        yield FaultKind(f"reset in response at {count}", {"kind": "reset_in_response", "after_bytes": count})


def _late() -> Iterator[FaultKind]:
    for effect in ("before", "after"):
        # Released as soon as the client has given up: the effect, or its answer, comes while it recovers.
        yield FaultKind(f"late {effect}", {"kind": "hold", "effect": effect}, late=True)
        yield FaultKind(f"delay {effect}", {"kind": "delay", "seconds": 2 * TIMEOUT, "effect": effect}, late=True)


def _broken_answers() -> Iterator[FaultKind]:
    yield FaultKind("truncated json", {"kind": "truncated_json"}, needs="json")
    yield FaultKind("malformed json", {"kind": "malformed_json"}, needs="json")
    yield FaultKind("unlisted status", {"kind": "status_value", "status": "frozen"}, needs="sent transfer")


def _proxies() -> Iterator[FaultKind]:
    """What stands between answers in the service's place, after the service has done what it was asked."""
    for status, passes in ((400, False), (404, True), (408, True), (409, True), (413, False), (429, True), (499, True)):
        yield _error(f"{status} of a proxy after", status, passes=passes, code="", effect="after")


def _untrue_answers() -> Iterator[FaultKind]:
    """Of another transfer, or an old one of a cache: what it says is not what is so."""
    for name, key, value, passes in (
        ("id of another", "id", f'"{UNKNOWN_ID}"', False),
        ("subject of another", "subject", '"Other"', False),
        ("files unsaid", "files", "null", True),
        ("files not seen", "files", "[]", False),
        ("a draft still", "status", '"draft"', True),
    ):
        yield FaultKind(name, {"kind": "field_value", "field": key, "json": value}, passes, needs="json")


#: Every kind of fault that the sandbox has but those of feed pages, which no delivery meets.
KINDS: tuple[FaultKind, ...] = (
    *_refusals(), *_passing_errors(), *_proxies(), *_broken_connections(), *_late(), *_broken_answers(),
    *_untrue_answers(),
)  # fmt: skip

BY_NAME = {kind.name: kind for kind in KINDS}

#: The position of the send among the calls of a delivery of three files.
SEND = 4

#: A delay is a hold that nobody decides about: in pairs, which are many, one of the two is enough.
PAIR_KINDS: tuple[FaultKind, ...] = tuple(kind for kind in KINDS if not kind.name.startswith("delay"))


@dataclass(frozen=True)
class Outcome:
    """How a schedule ended.

    :ivar result: "sent", or why not.
    :ivar leaked: drafts that nothing leads to any more.
    :ivar title: what was run, where it is more than the schedule.
    """

    schedule: Schedule
    result: str
    leaked: int
    violations: tuple[str, ...]
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or " + ".join(map(str, self.schedule)) or "no fault"


class Harness:
    """Runs schedules, one after another, against a sandbox that is replaced now and then.

    :param given: the kind of input that a delivery gets its files as; see :mod:`resilience.inputs`.
    """

    def __init__(self, folder: Path, given: str = "paths") -> None:
        self.given = given
        self._runs = 0
        self._sandbox: Sandbox | None = None
        self._elsewhere: Sandbox | None = None
        self._open = ExitStack()
        self.files = [folder / name for name in SIZES]
        self.restore_files()

    def restore_files(self) -> None:
        for number, path in enumerate(self.files):
            path.write_bytes(bytes([65 + number]) * SIZES[path.name])

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def sandbox(self) -> Sandbox:
        """An account with nothing going on in it."""
        if self._runs % SCHEDULES_PER_SANDBOX == 0:
            self._open.close()
            self._sandbox = self._open.enter_context(running_sandbox())
            self._elsewhere = None
        self._runs += 1
        assert self._sandbox
        return self._sandbox

    def elsewhere(self) -> Sandbox:
        """Another account, which lives as long as the first."""
        if self._elsewhere is None:
            self._elsewhere = self._open.enter_context(running_sandbox())
        return self._elsewhere

    def run(self, schedule: Schedule, *, deferrable: bool = False) -> Outcome:
        """Run and judge. On a busy machine a client gives up more calls than those that are late, and the faults after
        them find other calls than they were planned for: such a schedule, one that was not met, is run once more.
        """
        outcome = self._run(schedule, deferrable=deferrable)
        if outcome.violations and all(violation.startswith(NOT_MET) for violation in outcome.violations):
            outcome = self._run(schedule, deferrable=deferrable)
        return outcome

    def _run(self, schedule: Schedule, *, deferrable: bool) -> Outcome:
        run = FaultedRun(self.sandbox(), self.files, late=_is_late(schedule), given=self.given)
        run.plan(*[planned.plan() for planned in schedule])
        run.deliver(deferrable=deferrable)
        must_succeed = all(planned.kind.passes for planned in schedule)
        return run.judged(schedule, must_succeed=must_succeed)

    def following(self, first: Schedule, needs: str) -> int:
        """How many calls that bear a kind with these needs follow after the faults of ``first``."""
        # Where real time matters, a busy machine may add calls to one run, hardly to two.
        return min(self._following(first, needs) for _ in range(2 if _is_late(first) else 1))

    def _following(self, first: Schedule, needs: str) -> int:
        probe = next(kind for kind in KINDS if kind.needs == needs)
        run = FaultedRun(self.sandbox(), self.files, late=_is_late(first), given=self.given)
        run.plan(*[planned.plan() for planned in first], Planned(probe, ENDLESS).plan())
        run.deliver()
        run.settle()
        return int(run.sandbox.faults()[-1]["passed"])


class FaultedRun:
    """One delivery under faults."""

    def __init__(self, sandbox: Sandbox, files: list[Path], *, late: bool, given: str = "paths") -> None:
        self.sandbox, self.files, self.given = sandbox, files, given
        sandbox.clear_faults()
        memory.begin_anew(sandbox)
        # The rate allowance is as good as new.
        sandbox.advance_clock(3600)
        self.connection = _connection(sandbox, TIMEOUT if late else 60)
        self.time: SimulatedClock = ReleasingClock(sandbox) if late else SimulatedClock(sandbox)
        self.judge = DeliveryOracle(sandbox, files, DELIVERY["recipients"])
        self.result: Any = None
        self.error: BaseException | None = None
        self.ti: FakeTaskInstance | None = None

    def plan(self, *faults: dict[str, Any]) -> None:
        if faults:
            self.sandbox.plan_faults(*faults)

    def task(self, *, deferrable: bool = False, **changes: Any) -> FakeTaskInstance:
        # A schedule means the calls in their order; :mod:`.uploads` is about those that run at once.
        arguments = {**DELIVERY, **INPUTS[self.given](self.files), "max_parallel_uploads": 1, **changes}

        def make() -> DeliverFilesOperator:
            return operator_for(self.given)(task_id="deliver", deferrable=deferrable, **arguments)

        return FakeTaskInstance(make, self.time, RETRIES)

    def deliver(self, ti: FakeTaskInstance | None = None, *, deferrable: bool = False) -> None:
        self.ti = ti or self.task(deferrable=deferrable)
        self.result, self.error = self.result_of(self.ti)

    def result_of(self, ti: FakeTaskInstance) -> tuple[Any, BaseException | None]:
        """Run a task against this sandbox: its result, or the error that it ended with."""
        with self.environment():
            try:
                return ti.run(), None
            except (Exception, ProcessCrashed) as error:
                return None, error

    @contextmanager
    def environment(self) -> Iterator[None]:
        """The connections of a process that begins, or goes on."""
        with mock.patch.dict(os.environ, {CONNECTION: self.connection, **sql_connection(self.files)}):
            yield

    def settle(self) -> None:
        settle(self.sandbox)

    def judged(self, schedule: Schedule = (), *, must_succeed: bool, clear: bool = True) -> Outcome:
        """What the sandbox says of it; ``clear``: a task that failed is cleared, and judged again."""
        self.settle()
        unmet = [row for row in self.sandbox.faults() if row["state"] != "triggered"]
        self.sandbox.clear_faults()
        billed = self.judge.billed()
        violations = [f"{NOT_MET}: {row['kind']}" for row in unmet]
        violations += self.judge.violations()
        violations += self._violations_of_success(billed) if self.error is None else self._violations_of_failure(billed)
        if self.error and must_succeed:
            violations.append(f"failed though every fault passes: {self.error!r}")
        outcome = Outcome(schedule, self._result(billed), self.judge.leaked(), tuple(violations))
        if self.error and clear:
            outcome = replace(outcome, violations=(*violations, *self._violations_of_clear()))
        return outcome

    def _violations_of_clear(self) -> Iterator[str]:
        """A user reads the error, mends what it says and clears the task: all is well then, whatever had been sent."""
        assert self.ti
        self.ti.clear()
        result, error = self.result_of(self.ti)
        if f"Transfer {UNKNOWN_ID} was sent" in str(error):  # as the service has said, which does not show it
            assert "if it was not sent, trigger a new Dag run" in str(error)
            result, error = self.result_of(FakeTaskInstance(self.ti.make, self.time, RETRIES, run_id="another"))
        billed = self.judge.billed()
        if error or billed != [result["id"]]:
            yield f"after a clear without faults: {result or error!r}, billed are {billed}"
        elif (stored := self.judge.stored(billed[0])) != (meant := self.judge.meant()):
            yield f"after a clear without faults: sent {stored} and not {meant}"

    def _violations_of_success(self, billed: list[str]) -> Iterator[str]:
        if self.result["id"] not in billed:
            yield f"succeeded with {self.result['id']}, billed are {billed}"

    def _violations_of_failure(self, billed: list[str]) -> Iterator[str]:
        for transfer_id in billed:
            if not says_sent(self.error, transfer_id):
                yield f"sent {transfer_id}, and the task's error does not say so: {self.error!r}"

    def _result(self, billed: list[str]) -> str:
        if self.error is None:
            return "sent"
        return "failed, but sent" if billed else "failed, not sent"


def settle(sandbox: Sandbox) -> None:
    """Let go of what is held, until nothing is on its way any more."""

    def nothing_is_held() -> bool:
        sandbox.release_held_calls()
        return all(row["state"] != "held" for row in sandbox.faults())

    eventually(nothing_is_held)


class ReleasingClock(SimulatedClock):
    """Time in which whatever is held lands while the client waits for its next try."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        settle(self.sandbox)


def _is_late(schedule: Schedule) -> bool:
    return any(planned.kind.late for planned in schedule)


def _connection(sandbox: Sandbox, timeout: float) -> str:
    # Without certificates to load, which plain HTTP has no use for, a client is made in no time.
    return sandbox.airflow_connection(timeout=timeout, verify=False)


def singles(harness: Harness) -> Iterator[Schedule]:
    """Every kind at every call of a delivery that can bear it."""
    yield from following_schedules(harness, (), KINDS)


def following_schedules(harness: Harness, first: Schedule, kinds: tuple[FaultKind, ...]) -> Iterator[Schedule]:
    """``first`` with each kind at each of the calls that follow it."""
    calls: dict[str, int] = {}
    for kind in kinds:
        if kind.needs not in calls:
            calls[kind.needs] = harness.following(first, kind.needs)
        yield from ((*first, Planned(kind, skip)) for skip in range(calls[kind.needs]))


def first_faults(harness: Harness) -> list[Schedule]:
    """The singles that pairs begin with."""
    return list(following_schedules(harness, (), PAIR_KINDS))
