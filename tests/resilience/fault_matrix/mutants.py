"""Safeguards of the provider taken out, to test that the tests notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from outbound_transfer.client.client import Client
from outbound_transfer.delivery import attach, delivery, delivery_key, evidence, shared_draft
from outbound_transfer.delivery.decision import Action, Decision, Evidence, Phase, Reason, Step
from outbound_transfer.delivery.memory import Memory
from outbound_transfer.delivery.memory_store import TaskMemoryStore
from outbound_transfer.delivery.shared_draft import SharedDraft


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


def checking_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must hold is checked before the first attempt at a call, and not after a wait."""
    for name in ("perform", "run"):
        monkeypatch.setattr(Client, name, _checking_once(getattr(Client, name)))


def _checking_once(perform: Callable[..., Any]) -> Callable[..., Any]:
    def perform_checking_once(client: Client, call: Any, *, before_attempt: Callable[[], object] = lambda: None) -> Any:
        checks = iter([before_attempt])
        return perform(client, call, before_attempt=lambda: next(checks, lambda: None)())

    return perform_checking_once


def dropping_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is open ends with its try."""
    continued = Memory.continued

    def continued_without(memory: Memory, *arguments: Any, **options: Any) -> Memory:
        return continued(replace(memory, question=None), *arguments, **options)

    monkeypatch.setattr(Memory, "continued", continued_without)


def trusting_every_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft is continued whose last writer has not said that it stopped."""
    instead(monkeypatch, Action.RESUME, Action.DISCARD)

    def handed_on(writer: Any, scope: Any, phase: Phase, *arguments: Any, **known: Any) -> Memory:
        return Memory(writer, scope, Phase.HANDED_ON, *arguments, **known)

    monkeypatch.setattr(attach, "Memory", handed_on)


def comparing_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared draft is sent with whatever files it holds."""
    monkeypatch.setattr(SharedDraft, "_check_files", lambda *_: None)


def comparing_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id is taken for an identity."""
    for module in (evidence, shared_draft):
        monkeypatch.setattr(module, "matches", lambda *_: True)


def leaving_the_other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task has begun under another key is nobody's concern."""
    monkeypatch.setattr(delivery_key, "_withdraw_key", lambda *_, **__: None)


def delivering_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may have been sent where the connection does not lead any more is forgotten."""
    decide = delivery.decide

    def decide_otherwise(now: Step, evidence: Evidence) -> Decision:
        decision = decide(now, evidence)
        return Decision(Action.FORGET) if decision.reason is Reason.MADE_ELSEWHERE else decision

    monkeypatch.setattr(delivery, "decide", decide_otherwise)
