"""What a delivery remembers: whether a draft was made from just this input, without a secret that could be guessed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbound_transfer.airflow_compat.names import NEVER_EXPIRE
from outbound_transfer.delivery.state import (
    DeliveryState,
    Match,
    PlannedFile,
    StateLost,
    begin_attempt,
    digest,
    load,
    new_salt,
    save,
    save_verified,
    state_from_inputs,
)
from outbound_transfer.protocol.models import NewTransfer, build_new_transfer

SALT = "00" * 16
KEY = "ots_key"
BASE: dict[str, Any] = {
    "subject": "S",
    "recipients": [{"email": "a@example.com", "name": "A", "phone": "5550199"}, "b@example.com"],
    "message": "M",
    "security": "question",
    "security_question": "Q",
    "security_answer": "rosebud",
}
FILES: list[Any] = ["/data/a.csv", {"path": "/data/b.csv", "name": "c.csv"}]

CHANGES: list[dict[str, Any]] = [
    {"subject": "S "},
    {"message": "m"},
    {"message": None},
    {"security": "question", "security_question": "q"},
    {"security_answer": "Rosebud"},
    {"security": None, "security_question": None, "security_answer": None},
    {"recipients": BASE["recipients"][:1]},
    {"recipients": [*BASE["recipients"], "c@example.com"]},
    {"recipients": [{**BASE["recipients"][0], "phone": "5550198"}, "b@example.com"]},
    {"recipients": [{**BASE["recipients"][0], "phone": None}, "b@example.com"]},
    {"recipients": [{**BASE["recipients"][0], "name": "B"}, "b@example.com"]},
]


def new(**changes: Any) -> NewTransfer:
    return build_new_transfer(**BASE | changes)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_field_counts(change: dict[str, Any]) -> None:
    assert state_from_inputs(new(), FILES, KEY).match(new(**change), KEY) is Match.OTHER
    assert state_from_inputs(new(**change), FILES, KEY).match(new(), KEY) is Match.OTHER


def test_the_same_input_in_another_form_is_the_same() -> None:
    state = state_from_inputs(new(), FILES, KEY)
    assert state.match(new(recipients=tuple(BASE["recipients"])), KEY) is Match.SAME
    others = [{"phone": "5550199", "name": "A", "email": "a@example.com"}, {"email": "b@example.com"}]
    assert state.match(new(recipients=others), KEY) is Match.SAME
    assert state.match(new(recipients=BASE["recipients"][::-1]), KEY) is Match.SAME, "of a set, perhaps"


def test_secrets_cannot_be_compared_once_the_key_is_replaced() -> None:
    state = state_from_inputs(new(), FILES, KEY)
    assert state.match(new(), "another") is Match.UNKNOWN
    assert state.match(new(subject="T"), "another") is Match.OTHER


def test_a_replaced_key_does_not_matter_without_secrets() -> None:
    plain = {"recipients": ["b@example.com"], "security": None, "security_question": None, "security_answer": None}
    state = state_from_inputs(new(**plain), FILES, KEY)
    assert state.match(new(**plain), "another") is Match.SAME
    assert state.match(new(), "another") is Match.OTHER


def test_short_secrets_cannot_be_guessed_from_what_is_stored() -> None:
    """Who may read a task sees its salt: without the key, no candidate can be told from another."""
    asked = new(security_answer="042", recipients=["b@example.com"])
    state = state_from_inputs(asked, FILES, KEY)
    candidates = [new(security_answer=f"{each:03}", recipients=["b@example.com"]) for each in range(1_000)]
    for guessed_key in ("", state.salt, state.key_check, state.fingerprint):
        assert not any(state.match(each, guessed_key) is Match.SAME for each in candidates)
        assert {each.match(asked, guessed_key) for each in [state]} == {Match.UNKNOWN}


def test_the_paths_and_patterns_of_files_count() -> None:
    others = [
        None,
        [],
        FILES[:1],
        FILES[::-1],
        ["/data/a.csv", {"path": "/data/b.csv", "name": "d.csv"}],
        "/data/a.csv",
    ]
    assert len({digest(files, SALT) for files in [FILES, *others]}) == len(others) + 1
    same = [FILES, tuple(FILES), [Path("/data/a.csv"), {"name": "c.csv", "path": Path("/data/b.csv")}]]
    assert len({digest(files, SALT) for files in same}) == 1


def test_another_process_comes_to_the_same() -> None:
    code = f"""
import msgspec, json
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer.delivery.state import DeliveryState
state = msgspec.json.decode({msgspec.json.encode(state_from_inputs(new(), FILES, KEY))!r}, type=DeliveryState)
print(state.match(build_new_transfer(**{BASE!r}), {KEY!r}).name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "SAME"


def test_the_salt_makes_each_delivery_its_own() -> None:
    assert len({new_salt() for _ in range(100)}) == 100
    assert len({state_from_inputs(new(), FILES, KEY).fingerprint for _ in range(3)}) == 3
    assert len({state_from_inputs(new(), FILES, KEY).secrets_digest for _ in range(3)}) == 3


class Store:
    """A task state store: JSON in, JSON out."""

    def __init__(self) -> None:
        self.saved: dict[str, str] = {}
        self.retentions: list[Any] = []

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.saved[key]) if key in self.saved else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.saved[key] = json.dumps(value)
        self.retentions.append(retention)


def test_a_state_never_expires_and_is_read_back_unchanged() -> None:
    store = Store()
    assert load(store, 3) is None
    files = {"a.csv": PlannedFile(3, "1-2", "f"), "ü": PlannedFile(0, "v", earlier_sizes=(1, 2))}
    state = state_from_inputs(new(), FILES, KEY, clear_counters=(2, 1), try_number=3, send_started=True)
    state.files = files
    save(store, state)
    assert load(store, 3) == state
    assert store.retentions == [NEVER_EXPIRE]


def test_each_try_writes_its_own_key_and_reads_the_newest() -> None:
    store = Store()
    first, third = DeliveryState("first", try_number=1), DeliveryState("third", try_number=3)
    save(store, first)
    assert load(store, 2) == first
    save(store, third)
    # A try that was given up, and does not know it.
    save(store, DeliveryState("first", try_number=1, send_started=True))
    assert load(store, 4) == third
    assert load(store, 2) == DeliveryState("first", try_number=1, send_started=True)


def test_a_try_does_not_begin_after_a_later_one() -> None:
    store = Store()
    assert begin_attempt(store, 1) == (0, 0, None)
    save(store, DeliveryState("third", try_number=3, send_started=True))
    assert begin_attempt(store, 3)[1] == begin_attempt(store, 4)[1] == 3
    save(store, DeliveryState("fourth", try_number=4, send_started=True))
    with pytest.raises(StateLost, match="This is try 3 of the task, and try 4 has begun, and sent transfer fourth, or"):
        begin_attempt(store, 3)


def test_what_is_stored_holds_no_secret() -> None:
    store = Store()
    save(store, state_from_inputs(new(), FILES, KEY, try_number=1))
    assert not any(secret in str(store.saved) for secret in (*new().secrets, KEY))


@pytest.mark.parametrize("saved", [{}, {"transfer_id": 7}, [], "t", {"transfer_id": "t", "files": {"a": 1}}])
def test_an_invalid_state_is_an_error_and_not_a_new_delivery(saved: Any) -> None:
    store = Store()
    save(store, DeliveryState("t", try_number=1))
    (key,) = store.saved
    store.saved[key] = json.dumps(saved)
    with pytest.raises(StateLost):
        load(store, 1)


def test_fields_of_tomorrow_are_passed_over() -> None:
    store = Store()
    save(store, DeliveryState("t", try_number=1))
    (key,) = store.saved
    store.saved[key] = '{"transfer_id": "t", "try_number": 1, "of_tomorrow": 1}'
    assert load(store, 1) == DeliveryState("t", try_number=1)


def test_a_store_that_gives_back_nothing_or_something_else_is_noticed() -> None:
    class Forgetful(Store):
        def get(self, key: str, default: Any = None) -> Any:
            return default

    class Stale(Store):
        def get(self, key: str, default: Any = None) -> Any:
            return {"transfer_id": "of another try"}

    state = DeliveryState("", salt=SALT, try_number=1)
    save_verified(Store(), state)
    for kind in (Forgetful, Stale):
        with pytest.raises(StateLost):
            save_verified(kind(), state)


def test_a_state_without_a_fingerprint_is_of_nothing() -> None:
    assert DeliveryState("t").match(new(), KEY) is Match.OTHER


def test_a_lazy_sequence_counts_by_its_content() -> None:
    class Lazy:
        def __init__(self, *items: str) -> None:
            self.items = items

        def __iter__(self) -> Iterator[str]:
            return iter(self.items)

    ab = digest(["a", "b"], SALT)
    assert digest(Lazy("a", "b"), SALT) == ab
    assert digest(Lazy("a", "c"), SALT) != ab


def test_a_path_of_invalid_unicode_counts() -> None:
    assert digest(["caf\udce9"], SALT) != digest(["caf\udce8"], SALT)
