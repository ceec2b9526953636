"""The model's schedules on the real operators: each ends as the model says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from model import scenarios
from model.explore import Scenario
from model.replay.replay import HANDLERS, Differs, Replay
from model.replay.sample import NOT_REPLAYED, schedule
from model.replay.service import Service, running_service
from model.scenarios import ALL
from model.troubles import TROUBLES
from outbound_transfer.delivery import delivery
from outbound_transfer.delivery.decision import Action, Decision, Evidence, Step
from outbound_transfer.delivery.delivery import Delivery
from outbound_transfer.delivery.draft_writer import DraftWriter
from outbound_transfer.delivery.evidence import EvidenceCollector
from outbound_transfer.delivery.memory_store import TaskMemoryStore
from outbound_transfer.delivery.shared_draft import SharedDraft
from outbound_transfer.warehouse.memory_table import MemoryRow

REPLAYED = [each for each in ALL if each.name not in NOT_REPLAYED]

#: Schedules of each scenario, and of the one with the most troubles; and by night.
SCHEDULES, MOST_SCHEDULES, MORE_SCHEDULES = 12, 36, 200

#: Schedules share the accounts of a process.
_numbers = count()

Replayer = Callable[[Scenario, int], None]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as service:
        yield service


@pytest.fixture
def replay(service: Service, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Replayer]:
    """What replays a schedule of a scenario, by its number."""
    seed = request.config.getoption("--hypothesis-seed") or 0

    def run(scenario: Scenario, number: int) -> None:
        try:
            Replay(service, schedule(scenario, seed, number), f"replay{next(_numbers)}", tmp_path).run()
        except Differs as error:
            raise Differs(f"With seed {seed}: {error}") from None

    logging.disable(logging.ERROR)  # tries that are meant to fail
    yield run
    logging.disable(logging.NOTSET)


def numbers_of(scenario: Scenario) -> range:
    return range(MOST_SCHEDULES if scenario is scenarios.ONE_TASK else SCHEDULES)


def by_name(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("scenario", REPLAYED, ids=by_name)
def test_every_schedule_ends_as_the_model_says(replay: Replayer, scenario: Scenario) -> None:
    for number in numbers_of(scenario):
        replay(scenario, number)


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", REPLAYED, ids=by_name)
def test_many_schedules_end_as_the_model_says(replay: Replayer, scenario: Scenario) -> None:
    for number in range(SCHEDULES, MORE_SCHEDULES):
        replay(scenario, number)


def test_every_trouble_is_replayed() -> None:
    assert {"try", *HANDLERS} == TROUBLES.keys()
    numbers = range(max(len(each.limits) for each in REPLAYED))
    came = {step.trouble for each in REPLAYED for number in numbers for step in schedule(each, 0, number).steps}
    assert came - {""} == {trouble for each in REPLAYED for trouble in each.limits}


# Tests of the test: with a mend taken out of the real executor, or a rule of its table changed, a schedule differs.


def deciding(then: Action, *instead: Action, step: Step = Step.PREPARE) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what lets the real table say something else. The model has the other one."""

    def change(monkeypatch: pytest.MonkeyPatch) -> None:
        decide = delivery.decide

        def decide_otherwise(now: Step, evidence: Evidence) -> Decision:
            decision = decide(now, evidence)
            return Decision(then) if now is step and decision.action in instead else decision

        monkeypatch.setattr(delivery, "decide", decide_otherwise)

    return change


def without(owner: Any, method: str, returns: Any = None) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what takes a method or a function out."""
    return lambda monkeypatch: monkeypatch.setattr(owner, method, lambda *_, **__: returns)


def unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an owner go on with a key that another has claimed."""
    monkeypatch.setattr(MemoryRow, "_check_still_owner", lambda _, row: row)


@pytest.mark.parametrize(
    ("scenario", "take_out"),
    [
        pytest.param(scenarios.ONE_TASK, deciding(Action.RESUME, Action.DISCARD), id="any draft is continued"),
        pytest.param(scenarios.ONE_TASK, deciding(Action.CREATE, Action.SEARCH), id="nobody is asked"),
        pytest.param(
            scenarios.MAPPED, deciding(Action.SEND, Action.SEARCH, step=Step.SEND), id="nobody is asked before the send"
        ),
        pytest.param(
            scenarios.REDELIVERY, deciding(Action.SEND, Action.CHECK, step=Step.SEND), id="pickups are not looked for"
        ),
        pytest.param(
            scenarios.AT_ONCE, deciding(Action.SEND, Action.CONFIRM, step=Step.SEND), id="a given-up try sends"
        ),
        pytest.param(scenarios.ONE_TASK, without(TaskMemoryStore, "check_still_own"), id="the memory is not fenced"),
        pytest.param(scenarios.ONE_TASK, without(Delivery, "_close"), id="nothing is handed on"),
        pytest.param(scenarios.MAPPED_FULL, without(Delivery, "_note_wait"), id="nothing is asked again after a wait"),
        pytest.param(scenarios.ONE_TASK, without(DraftWriter, "resume"), id="a hand-over is not withdrawn"),
        pytest.param(scenarios.MAPPED_IN_BOTH, without(EvidenceCollector, "_cannot_be_searched", False), id="searched"),
        pytest.param(scenarios.THREE_TASKS, without(SharedDraft, "_check_files"), id="shared files are not compared"),
        pytest.param(scenarios.KEY, unfenced, id="the row of a key is not fenced"),
        pytest.param(scenarios.KEY_SHARED, without(MemoryRow, "_check_owner"), id="owners that run lose their key"),
    ],
)
def test_it_is_found(
    replay: Replayer, monkeypatch: pytest.MonkeyPatch, scenario: Scenario, take_out: Callable[[Any], None]
) -> None:
    take_out(monkeypatch)

    def replay_all() -> None:
        for number in range(MORE_SCHEDULES):
            replay(scenario, number)

    with pytest.raises(Differs):
        replay_all()
