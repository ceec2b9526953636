"""Safeguards of the provider taken out, to test that the tests notice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from outbound_transfer.delivery import delivery
from outbound_transfer.delivery.decision import Action, Decision, Evidence, Phase, Step
from outbound_transfer.delivery.memory import Memory
from outbound_transfer.delivery.memory_store import TaskMemoryStore


def forgetting_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery does not remember its draft."""
    save = TaskMemoryStore.save

    def save_without_id(store: TaskMemoryStore, memory: Memory) -> None:
        save(store, replace(memory, draft_id="", phase=Phase.EMPTY))

    monkeypatch.setattr(TaskMemoryStore, "save", save_without_id)
    monkeypatch.setattr(TaskMemoryStore, "save_verified", save_without_id)


def never_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try makes a draft and sends it."""
    always = {Step.PREPARE: Decision(Action.CREATE), Step.SEND: Decision(Action.SEND)}
    monkeypatch.setattr(delivery, "decide", lambda step, _: always[step])


def instead(monkeypatch: pytest.MonkeyPatch, then: Action, *decided: Action, step: Step = Step.PREPARE) -> None:
    """A step of the table does ``then`` where it decides something else."""
    decide = delivery.decide

    def decide_otherwise(now: Step, evidence: Evidence) -> Decision:
        decision = decide(now, evidence)
        return Decision(then) if now is step and decision.action in decided else decision

    monkeypatch.setattr(delivery, "decide", decide_otherwise)
