"""What a delivery remembers: a fingerprint that tells one input from another and gives no secret away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbound_transfer.protocol.models import NewTransfer, new_transfer
from outbound_transfer.state import DeliveryState, PlannedFile, fingerprint, load, new_salt, save

SALT = "00" * 16
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
    {"recipients": BASE["recipients"][::-1]},
    {"recipients": BASE["recipients"][:1]},
    {"recipients": [*BASE["recipients"], "b@example.com"]},
    {"recipients": [{**BASE["recipients"][0], "phone": "5550198"}, "b@example.com"]},
    {"recipients": [{**BASE["recipients"][0], "name": "B"}, "b@example.com"]},
]


def new(**changes: Any) -> NewTransfer:
    return new_transfer(**BASE | changes)


def test_every_field_counts() -> None:
    prints = [fingerprint(new(**change), FILES, SALT) for change in [{}, *CHANGES]]
    assert len(set(prints)) == len(CHANGES) + 1


def test_the_files_count() -> None:
    others = [
        None,
        [],
        FILES[:1],
        FILES[::-1],
        ["/data/a.csv", {"path": "/data/b.csv", "name": "d.csv"}],
        "/data/a.csv",
    ]
    assert len({fingerprint(new(), files, SALT) for files in [FILES, *others]}) == len(others) + 1


def test_the_same_input_in_another_form_is_the_same() -> None:
    same = [
        (new(), FILES),
        (new(recipients=tuple(BASE["recipients"])), tuple(FILES)),
        (
            new(recipients=[{"phone": "5550199", "name": "A", "email": "a@example.com"}, {"email": "b@example.com"}]),
            FILES,
        ),
        (new(), [Path("/data/a.csv"), {"name": "c.csv", "path": Path("/data/b.csv")}]),
    ]
    assert len({fingerprint(asked, files, SALT) for asked, files in same}) == 1


def test_another_process_gives_the_same_fingerprint() -> None:
    code = f"""
from outbound_transfer.protocol.models import new_transfer
from outbound_transfer.state import fingerprint
print(fingerprint(new_transfer(**{BASE!r}), {FILES!r}, {SALT!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(new(), FILES, SALT)


def test_the_salt_makes_each_delivery_its_own() -> None:
    salts = {new_salt() for _ in range(100)}
    assert len(salts) == 100
    assert len({fingerprint(new(), FILES, salt) for salt in list(salts)[:3]}) == 3


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


def test_a_state_is_stored_for_ever_and_comes_back_the_same() -> None:
    from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]

    store, salt = Store(), new_salt()
    assert load(store) is None
    files = {"a.csv": PlannedFile(3, "1-2", "f"), "ü": PlannedFile(0, "v")}
    state = DeliveryState("t", salt, fingerprint(new(), FILES, salt), 2, 3, files, True)
    save(store, state)
    assert load(store) == state
    assert store.retentions == [NEVER_EXPIRE]
    loaded = load(store)
    assert loaded
    assert loaded.is_of(new(), FILES)
    assert not any(loaded.is_of(new(**change), FILES) for change in CHANGES[:2])


def test_what_is_stored_holds_no_secret() -> None:
    store, salt = Store(), new_salt()
    save(store, DeliveryState("t", salt, fingerprint(new(), FILES, salt)))
    assert not any(secret in str(store.saved) for secret in new().secrets)


@pytest.mark.parametrize("saved", [{}, {"transfer_id": 7}, [], "t", {"transfer_id": "t", "files": {"a": 1}}])
def test_a_state_that_is_none_is_an_error_and_no_new_delivery(saved: Any) -> None:
    store = Store()
    save(store, DeliveryState("t"))
    (key,) = store.saved
    store.saved[key] = json.dumps(saved)
    with pytest.raises(msgspec.ValidationError):
        load(store)


def test_a_state_of_an_older_version_is_read() -> None:
    store = Store()
    save(store, DeliveryState("t"))
    (key,) = store.saved
    store.saved[key] = '{"transfer_id": "t", "of_tomorrow": 1}'
    assert load(store) == DeliveryState("t")


def test_a_state_without_a_fingerprint_is_of_nothing() -> None:
    assert not DeliveryState("t").is_of(new(), FILES)


def test_a_lazy_sequence_counts_by_its_content() -> None:
    class Lazy:
        def __init__(self, *items: str) -> None:
            self.items = items

        def __iter__(self) -> Iterator[str]:
            return iter(self.items)

    ab = fingerprint(new(), ["a", "b"], SALT)
    assert fingerprint(new(), Lazy("a", "b"), SALT) == ab
    assert fingerprint(new(), Lazy("a", "c"), SALT) != ab


def test_a_path_that_is_no_unicode_has_a_fingerprint() -> None:
    assert fingerprint(new(), ["caf\udce9"], SALT) != fingerprint(new(), ["caf\udce8"], SALT)
